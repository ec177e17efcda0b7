"""What a checkpoint would have run, as Python would write it; what only rebuilds tensors is harmless."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rankwise.weights.danger import HARMLESS, call_text, check_harmless, what_would_run
from rankwise.weights.opcodes import FunctionCall, Global, Persistent, PickleBytes, read_pickle
from rankwise.weights.tensor_records import CheckpointError, Content, TensorRecord
from tests.weights.bad_files import Bomb
from tests.weights.checkpoints import refused, save

SYSTEM = Global("posix", "system")
TENSORS = {"weight": TensorRecord("float32", (2,))}


def would_run(value: Any) -> tuple[str, ...]:
    return what_would_run(read_pickle(PickleBytes(pickle.dumps(value))))


def test_a_call_is_shown_once_and_with_what_it_would_be_given() -> None:
    bombs = [Bomb(os.system, "rm -rf /"), Bomb(os.system, "rm -rf /"), Bomb(eval, "1")]

    assert would_run(bombs) == ("posix.system('rm -rf /')", "builtins.eval('1')")


def test_an_import_is_dangerous_too_unless_its_call_is_shown() -> None:
    assert would_run({"hook": os.system}) == ("import posix.system",)
    assert would_run([os.system, Bomb(os.system, "a")]) == ("posix.system('a')",)


def test_what_rebuilds_tensors_is_harmless() -> None:
    whole = io.BytesIO()
    torch.save({"model": torch.nn.Linear(2, 2).state_dict(), "set": {1}}, whole, _use_new_zipfile_serialization=False)
    whole.seek(0)
    stream = PickleBytes(whole.getvalue())

    for _ in range(4):
        assert what_would_run(read_pickle(stream)) == ()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_the_old_name_of_the_builtins_is_theirs(protocol: int) -> None:
    """torch.save writes protocol 2, where Python calls them so."""
    plain = pickle.dumps([{1}, set(), 1j, bytearray(b"a")], protocol)

    assert what_would_run(read_pickle(PickleBytes(plain))) == ()
    assert what_would_run(read_pickle(PickleBytes(pickle.dumps(Bomb(eval, "1"), protocol)))) == ("builtins.eval('1')",)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (FunctionCall(SYSTEM, ()), "posix.system()"),
        (FunctionCall(SYSTEM, tuple(range(9))), "posix.system(0, 1, 2, 3, 4, 5)"),
        (FunctionCall(SYSTEM, (), state={"a": 1}), "posix.system().__setstate__(dict(tuple('a', 1)))"),
        (FunctionCall(SYSTEM, (Persistent(1), FunctionCall(SYSTEM, ("a",)))), "posix.system(<storage>, posix.system('a'))"),
        (FunctionCall(Persistent(("module", SYSTEM, "a.py", "source")), ()), "posix.system()"),
        (FunctionCall(SYSTEM, ([[["deep"]]],)), "posix.system(list(list(…)))"),
        (FunctionCall(SYSTEM, (1 << 200,)), "posix.system(<a number of 201 bits>)"),
        (FunctionCall(SYSTEM, (-(1 << 199),)), f"posix.system({-(1 << 199)})"),
        (FunctionCall(SYSTEM, ("a" * 101,)), f"posix.system('{'a' * 100}')"),
        (FunctionCall(SYSTEM, ("a" * 100, "b" * 100)), f"posix.system('{'a' * 100}', '{'b' * 42}…"),
    ],
)
def test_a_call_in_few_characters(call: FunctionCall, text: str) -> None:
    assert call_text(call) == text


def test_a_checkpoint_that_asks_for_nothing_passes() -> None:
    check_harmless(Content("torch zip", {}, ()), Path("a.pt"), tensors_only=False)


def test_only_the_tensors_are_read_where_that_was_asked_for() -> None:
    content = Content("torch zip", TENSORS, (), would_run=("posix.system()",))

    check_harmless(content, Path("a.pt"), tensors_only=True)
    with pytest.raises(CheckpointError) as caught:
        check_harmless(content, Path("a.pt"), tensors_only=False)

    assert caught.value.finding.code == "RW731"
    assert "tensors_only=True" in caught.value.finding.next[0]


@pytest.mark.parametrize("tensors_only", [True, False])
def test_where_there_are_no_tensors_none_can_be_read(tensors_only: bool) -> None:
    content = Content("torch zip", {}, (), would_run=tuple(f"f({number})" for number in range(10)))

    with pytest.raises(CheckpointError) as caught:
        check_harmless(content, Path("a.pt"), tensors_only)

    assert "tensors_only" not in " ".join(caught.value.finding.next)
    assert caught.value.finding.why.splitlines() == ["it asks for", *(f"f({number})" for number in range(8)), "and 2 more"]


def test_eight_are_all_shown() -> None:
    with pytest.raises(CheckpointError) as caught:
        check_harmless(Content("torch zip", {}, (), would_run=tuple("abcdefgh")), Path("a.pt"), tensors_only=False)

    assert caught.value.finding.why.splitlines()[-1] == "h"


def test_what_is_called_harmless_is_so_for_torch_too() -> None:
    from torch._weights_only_unpickler import _get_allowed_globals

    assert set(_get_allowed_globals()) >= HARMLESS


@pytest.mark.filterwarnings("ignore")  # torch calls these tensors deprecated
@pytest.mark.parametrize(
    "quantize",
    [
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
        lambda x: torch.quantize_per_channel(x, torch.ones(2), torch.zeros(2), 0, torch.quint8),
    ],
)
def test_quantized_tensors_cannot_be_read_and_are_no_danger(tmp_path: Path, quantize: Any) -> None:
    path = save(tmp_path / "last.pt", {"weight": quantize(torch.ones(2, 2)), "bias": torch.ones(2)})

    found = refused(nn.Linear(2, 2), path)

    assert (found.code, found.why) == ("RW740", "it is a qtensor, which has no plain storage")
