"""What a program's file or an example says about a model's inputs and outputs; what cannot be said is not guessed."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankwise.errors import UnreadableInput
from rankwise.pool.api.model import TensorSpec
from rankwise.pool.api.models_file import read_example, specs_of_example, specs_of_program

torch = pytest.importorskip("torch")


class Two(torch.nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, x: Any, index: Any) -> dict[str, Any]:
        return {"doubled": x * 2, "next": index + 1}


class One(torch.nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, x: Any) -> Any:
        return x.sum(1)


class Pair(torch.nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, x: Any) -> tuple[Any, Any]:
        return x + 1, x > 0


class Named(torch.nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, x: Any, *, k: Any) -> list[Any]:
        return [x + k, [x, k]]


def exported(path: Path, module: Any, *inputs: Any, rows: bool = False, **named: Any) -> Path:
    dynamic = {name: {0: torch.export.Dim("rows")} for name in ("x", "index")[: len(inputs)]} if rows else None
    torch.export.save(torch.export.export(module, inputs, named, dynamic_shapes=dynamic), path)
    return path


def test_names_types_and_shapes_of_a_program(tmp_path: Path) -> None:
    path = exported(tmp_path / "two.pt2", Two(), torch.zeros(2, 4), torch.zeros(2, 3, dtype=torch.int64), rows=True)
    assert specs_of_program(path) == (
        (TensorSpec("x", "FP32", (-1, 4)), TensorSpec("index", "INT64", (-1, 3))),
        (TensorSpec("doubled", "FP32", (-1, 4)), TensorSpec("next", "INT64", (-1, 3))),
    )
    path = exported(tmp_path / "one.pt2", One(), torch.zeros(2, 4, dtype=torch.bfloat16))
    assert specs_of_program(path) == ((TensorSpec("x", "BF16", (2, 4)),), (TensorSpec("output", "BF16", (2,)),))
    path = exported(tmp_path / "pair.pt2", Pair(), torch.zeros(2, 4, dtype=torch.float16))
    assert specs_of_program(path)[1] == (TensorSpec("output_0", "FP16", (2, 4)), TensorSpec("output_1", "BOOL", (2, 4)))


def test_what_the_protocol_has_no_words_for_is_left_open(tmp_path: Path) -> None:
    path = exported(tmp_path / "named.pt2", Named(), torch.zeros(2), k=torch.zeros(2))
    assert specs_of_program(path) == ((), ())
    path = exported(tmp_path / "complex.pt2", One(), torch.zeros(2, 4, dtype=torch.complex64))
    assert specs_of_program(path) == ((), ())


def test_files_that_are_no_program_say_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.pt2"
    assert specs_of_program(path) == ((), ())
    for content in (b"", b"PK", b"words"):
        path.write_bytes(content)
        assert specs_of_program(path) == ((), ())
    for said in ("", "[]", "{}", '{"schema_version": {"major": 99}}', '{"schema_version": {"major": 8}, "graph_module": 3}'):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a/models/model.json", said)
        assert specs_of_program(path) == ((), ())


def test_a_later_schema_is_not_read_as_if_it_were_ours(tmp_path: Path) -> None:
    path = exported(tmp_path / "one.pt2", One(), torch.zeros(2, 4))
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("models/model.json"))
        said = json.loads(archive.read(name))
    said["schema_version"]["major"] += 1
    with zipfile.ZipFile(tmp_path / "later.pt2", "w") as archive:
        archive.writestr(name, json.dumps(said))
    assert specs_of_program(path) != ((), ()) and specs_of_program(tmp_path / "later.pt2") == ((), ())


def test_an_example_has_names_types_and_shapes(tmp_path: Path) -> None:
    np.savez(tmp_path / "e.npz", image=np.zeros((1, 3, 8, 8), np.uint8), mask=np.zeros((1, 8), bool))
    example = read_example(tmp_path / "e.npz")
    specs = specs_of_example(tuple(example.values()), 8, example)

    assert specs == (TensorSpec("image", "UINT8", (-1, 3, 8, 8)), TensorSpec("mask", "BOOL", (-1, 8)))
    assert specs_of_example(torch.zeros(1, 4), 1) == (TensorSpec("input_0", "FP32", (1, 4)),)
    assert specs_of_example((torch.zeros(1, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.int32)), 1) == (
        TensorSpec("input_0", "BF16", (1,)),
        TensorSpec("input_1", "INT32", (2,)),
    )
    assert specs_of_example({"a": 1}, 1) == specs_of_example(torch.zeros(1, dtype=torch.complex64), 1) == ()


def test_an_example_that_cannot_be_read_is_a_finding_and_nothing_in_it_is_run(tmp_path: Path) -> None:
    np.save(tmp_path / "pickled.npy", np.array([{"a": 1}], object), allow_pickle=True)
    (tmp_path / "words.npz").write_text("words")
    for name in ("pickled.npy", "words.npz", "nowhere.npy"):
        with pytest.raises(UnreadableInput) as caught:
            read_example(tmp_path / name)
        assert name in str(caught.value)
