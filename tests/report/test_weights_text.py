"""What `rankwise weights` tells of a checkpoint and of what it wrote."""

from __future__ import annotations

from typing import Any

import pytest

from rankwise.report.weights_text import converted_text, weights_text


def tensor(name: str, **facts: Any) -> dict[str, Any]:
    return {"name": name, "dtype": "float32", "shape": [2, 3], "bytes": 24, **facts}


def weights(*tensors: dict[str, Any], **facts: Any) -> dict[str, Any]:
    return {
        "key": "model",
        "kind": "weights",
        "tensors": list(tensors),
        "parameters": 6 * len(tensors),
        "bytes": 24 * len(tensors),
        "prefixes": {},
        **facts,
    }


def text_of(*sets: dict[str, Any], show_all: bool = False, width: int = 100, **facts: Any) -> str:
    file = {"path": "a.pt", "files": [{"bytes": 2048}], "looks_like": ["torch.save"], "top_level": {}, "notes": [], "weights": list(sets)}
    return weights_text({**file, **facts}, show_all=show_all, width=width)


def test_a_checkpoint_is_told_before_its_tensors() -> None:
    shown = text_of(weights(tensor("a")), top_level={"epoch": "3"}, notes=["half of it"], verified_bytes=1024).splitlines()

    assert shown[:5] == [
        "a.pt  1 file, 2 KiB",
        "looks like   torch.save",
        "top level    epoch: 3",
        "note         half of it",
        "verified     1 KiB agree with their checksums",
    ]
    assert shown[6:] == ["model: weights, 1 tensor, 6 numbers, 24 B", "  a  float32  2×3  24 B"]


def test_what_is_not_there_has_no_line() -> None:
    assert len(text_of().splitlines()) == 2 and "a.pt  2 files, 2 KiB" in text_of(files=[{"bytes": 1024}] * 2)


def test_a_tensor_may_have_a_remark() -> None:
    shown = text_of(weights(tensor("a", shape=[]), tensor("b", same_as="a"), tensor("c", unreadable="cut off"), prefixes={"module.": 2}))

    assert "scalar" in shown and shown.count("same as a") == 1 and "cut off" in shown and "prefix 'module.' in 2 of 3 names" in shown


@pytest.mark.parametrize(
    ("number", "kind", "show_all", "shown", "more"),
    [
        (40, "weights", False, 40, ""),
        (41, "weights", False, 40, "and 1 more"),
        (41, "weights", True, 41, ""),
        (3, "training state", False, 0, "and 3 more"),
        (3, "training state", True, 3, ""),
    ],
)
def test_of_many_tensors_the_first_are_shown(number: int, kind: str, show_all: bool, shown: int, more: str) -> None:
    text = text_of(weights(*[tensor(f"t{n}") for n in range(number)], kind=kind), show_all=show_all)

    assert text.count("float32") == shown and (more in text if more else "more" not in text)


def test_names_from_a_file_cannot_break_the_lines() -> None:
    assert "\x1b" not in text_of(weights(tensor("a\x1b[2J\nb"), key="k\n")) and len(text_of(weights(tensor("a\nb"))).splitlines()) == 5


FACTS = {
    "output": "b.safetensors", "nbytes": 2048, "tensors": 4, "removed_prefixes": ["module."], "same_tensor": {"head": "body"},
    "read_s": 1.5, "written_read_s": 0.25,
}  # fmt: skip


def test_what_was_written_is_told_with_what_it_gains() -> None:
    assert converted_text(FACTS).splitlines() == [
        "b.safetensors  2 KiB",
        "4 tensors, without 'module.'; read back and compared bit by bit",
        "head is the same tensor as body and was written once",
        "reading all of it: before 1.500 s, now 0.250 s",
    ]


def test_outputs_that_were_compared_are_told() -> None:
    outputs = {"largest_difference": 1.5e-7, "load_s": 2.0, "converted_load_s": 0.5}

    assert converted_text({**FACTS, "outputs": outputs}).splitlines()[-2:] == [
        "outputs agree: largest relative difference 1.5e-07",
        "loading into the model: before 2.000 s, now 0.500 s",
    ]


def test_a_program_is_told_by_its_speed() -> None:
    program = {"output": "b.pt2", "nbytes": 2048, "program_ms": 0.5, "model_ms": 1.25, "largest_difference": 0.0}

    assert converted_text(program).splitlines()[1:] == [
        "outputs agree: largest relative difference 0",
        "one call: model 1.250 ms, program 0.500 ms",
    ]
