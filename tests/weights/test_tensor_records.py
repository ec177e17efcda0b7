"""The records of tensors: when two are one, when boxes fill a tensor, and what counts as damage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankwise.weights import tensor_records
from rankwise.weights.tensor_records import (
    Box,
    Content,
    Damaged,
    Extent,
    StateDictNode,
    TensorRecord,
    as_damage,
    check_cover,
    contiguous,
    is_extra_state,
    joined_content,
)

STORAGE = Extent(Path("a"), 0, 64)
MATRIX = TensorRecord("float32", (4, 4), STORAGE, 0, (4, 1))


@pytest.mark.parametrize(("shape", "strides"), [((2, 3, 4), (12, 4, 1)), ((), ()), ((5,), (1,)), ((2, 0, 3), (3, 3, 1)), ((1, 1), (1, 1))])
def test_the_strides_of_a_row_major_tensor(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    assert contiguous(shape) == strides


def test_a_records_size() -> None:
    assert (MATRIX.numel, MATRIX.nbytes) == (16, 64)
    assert TensorRecord("complex128", ()).nbytes == 16
    assert TensorRecord("unknown", (4,)).nbytes == 0


def test_two_names_of_the_very_same_elements_are_one_tensor() -> None:
    assert MATRIX.shares_all_with(replace(MATRIX))
    assert MATRIX.shares_all_with(replace(MATRIX, storage=replace(STORAGE, stamp=(1,))))


@pytest.mark.parametrize(
    "other",
    [{"first": 1}, {"shape": (2, 8)}, {"strides": (1, 4)}, {"dtype": "int32"}, {"storage": Extent(Path("b"), 0, 64)}, {"storage": None}],
)
def test_what_lies_otherwise_is_another_tensor(other: dict[str, Any]) -> None:
    assert not MATRIX.shares_all_with(replace(MATRIX, **other))


def test_tensors_without_elements_or_storage_share_nothing() -> None:
    for nothing in (TensorRecord("float32", (0,), STORAGE), TensorRecord("float32", (2,))):
        assert not nothing.shares_all_with(nothing)


QUARTERS: list[Box] = [((y, x), (2, 2)) for y in (0, 2) for x in (0, 2)]


@pytest.mark.parametrize(
    ("shape", "boxes"),
    [
        ((4, 4), QUARTERS),
        ((4, 4), QUARTERS[::-1]),
        ((4, 4), [*QUARTERS, ((0, 0), (0, 2))]),
        ((3,), [((0,), (1,)), ((1,), (2,))]),
        ((), [((), ())]),
        ((0, 4), []),
    ],
)
def test_boxes_that_fill_a_tensor(shape: tuple[int, ...], boxes: list[Box]) -> None:
    check_cover("weight", shape, boxes)


@pytest.mark.parametrize(
    ("shape", "boxes"),
    [
        ((4, 4), QUARTERS[1:]),
        ((4, 4), [*QUARTERS, QUARTERS[0]]),
        ((4, 4), [QUARTERS[0], QUARTERS[0], *QUARTERS[2:]]),
        ((4, 4), [*QUARTERS[:3], ((2, 1), (2, 2))]),
        ((4, 4), [*QUARTERS[:3], ((2, 3), (2, 2))]),
        ((3,), [((0,), (2,)), ((1,), (1,))]),
        ((4, 4), [((0,), (16,))]),
        ((), [((), ()), ((), ())]),
        ((3,), []),
    ],
)
def test_boxes_that_leave_something_out_or_lie_on_each_other_are_damage(shape: tuple[int, ...], boxes: list[Box]) -> None:
    with pytest.raises(Damaged, match="the parts of weight do not fill its shape"):
        check_cover("weight", shape, boxes)


def test_so_many_boxes_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    boxes: list[Box] = [((at,), (1,)) for at in range(4)]
    monkeypatch.setattr(tensor_records, "_MAX_BOXES", 4)
    check_cover("weight", (4,), boxes)

    monkeypatch.setattr(tensor_records, "_MAX_BOXES", 3)
    with pytest.raises(Damaged):
        check_cover("weight", (4,), boxes)


@pytest.mark.parametrize(("name", "is_it"), [("_extra_state", True), ("a.b._extra_state", True), ("my_extra_state", False), (3, False)])
def test_extra_state_is_known_by_the_end_of_its_name(name: Any, is_it: bool) -> None:
    assert is_extra_state(name) is is_it


@pytest.mark.parametrize("error", [KeyError("dtype"), IndexError(), TypeError("x"), AttributeError("x"), ValueError("x")])
def test_a_wrong_description_is_damage(error: Exception) -> None:
    with pytest.raises(Damaged, match=rf"a size \({type(error).__name__}: "), as_damage("a size"):
        raise error


def test_damage_keeps_its_words_and_other_errors_stay_what_they_are() -> None:
    with pytest.raises(Damaged, match=r"^its own words$"), as_damage("a size"):
        raise Damaged("its own words")
    with pytest.raises(OSError, match="gone"), as_damage("a size"):
        raise OSError("gone")


def test_what_would_run_is_told_once_of_all_files() -> None:
    parts = [Content("zip", {}, (Path(name),), would_run=("system()", name)) for name in "ab"]

    whole = joined_content("folder", {"w": 1}, parts)

    assert whole.files == (Path("a"), Path("b"))
    assert whole.would_run == ("system()", "a", "b")


def test_nodes_do_not_share_their_notes() -> None:
    one, other = StateDictNode(), StateDictNode()
    one.notes["a"] = {}

    assert other.notes == {}
