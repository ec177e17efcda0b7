"""Rows as columns: which columns are chosen, which rows are set aside, and what becomes an array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rankwise.errors import UsageError
from rankwise.offline.row_batches import (
    FILE_COLUMN,
    Row,
    Selection,
    as_column,
    has_fraction,
    is_fractional,
    join_columns,
    joined,
    of_rows,
    taken,
)


@pytest.mark.parametrize(
    ("selection", "wanted"),
    [
        (Selection(), (["a", "b", "c"], [])),
        (Selection(keep=("b",)), (["a", "c"], ["b"])),
        (Selection(("c", "a")), (["c", "a"], [])),
        (Selection(("a",), ("a", "b")), (["a"], ["a", "b"])),
    ],
)
def test_the_model_gets_the_columns_that_are_named_or_all_that_are_not_kept(selection: Selection, wanted: Any) -> None:
    assert selection.of(["a", "b", "c"], "x.csv") == wanted


@pytest.mark.parametrize(
    ("selection", "names", "said"),
    [
        (Selection(("a", "a")), ["a"], "a column is named twice"),
        (Selection(("d",)), ["a"], "x.csv has no column 'd'"),
        (Selection(keep=("d",)), ["a"], "x.csv has no column 'd'"),
        (Selection(("a",)), ["a", "b", "a"], "has 2 columns 'a'"),
        (Selection(keep=("a",)), ["a", "b", "a"], "has 2 columns 'a'"),
        (Selection(keep=("a",)), ["a"], "all columns of x.csv are kept"),
        (Selection(), [FILE_COLUMN], "cannot be given to the model"),
    ],
)
def test_columns_that_cannot_be_chosen_are_told(selection: Selection, names: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        selection.of(names, "x.csv")


@pytest.mark.parametrize("index", ["__index_level_0__", ""])
def test_an_index_of_pandas_is_not_for_the_model_unless_named(index: str) -> None:
    assert Selection().of([index, "a"], "x") == (["a"], [])
    assert Selection((index,), (index,)).of([index, "a"], "x") == ([index], [index])


def test_a_column_that_is_there_twice_is_no_matter_where_it_is_not_wanted() -> None:
    assert Selection(("b",)).of(["a", "b", "a"], "x.csv") == (["b"], [])


def test_rows_are_looked_at_until_all_that_is_named_was_seen() -> None:
    rows = iter([Row(), Row({"a": 1}), Row({"b": 2, "c": 3}), Row({"d": 4})])

    assert Selection(("a", "b")).of_first(rows, "x.jsonl") == (["a", "b"], [])
    assert next(rows).values == {"d": 4}


@pytest.mark.parametrize(
    ("selection", "rows", "wanted"),
    [
        (Selection(), [Row({"a": 1}), Row({"b": 2})], (["a"], [])),
        (Selection(keep=("b",)), [Row({"a": 1}), Row({"b": 2, "c": 3})], (["a"], ["b"])),
        (Selection(keep=("a",)), [Row({"a": 1, "b": 2})], (["b"], ["a"])),
        (Selection(("a",), ("b",)), [Row(why="broken")], (["a"], ["b"])),
        (Selection(keep=("b",)), [], None),
    ],
)
def test_where_nothing_is_named_the_first_row_says_what_there_is(selection: Selection, rows: list[Row], wanted: Any) -> None:
    assert selection.of_first(rows, "x.jsonl") == wanted


def test_rows_of_any_kind_of_column_are_taken() -> None:
    found = taken({"array": np.arange(4), "list": list("abcd"), "arrow": pa.array([1, 2, None, 4])}, [3, 2, 3])

    assert found["array"].tolist() == [3, 2, 3]
    assert found["list"] == ["d", "c", "d"]
    assert found["arrow"].to_pylist() == [4, None, 4]


@pytest.mark.parametrize(
    ("pieces", "kind", "whole"),
    [
        ([np.ones(1, np.float32), np.zeros(2, np.float32)], np.ndarray, [1, 0, 0]),
        ([np.ones(1, np.float32), np.ones(1, np.float64)], list, [1, 1]),
        ([np.ones((1, 2)), np.ones((1, 3))], list, None),
        ([np.ones(1), [None]], list, [1, None]),
        ([pa.array([1]), pa.array([2])], pa.Array, [1, 2]),
        ([["a"], ["b"]], list, ["a", "b"]),
    ],
)
def test_pieces_of_a_column_that_are_alike_stay_of_their_kind(pieces: list[Any], kind: type, whole: Any) -> None:
    found = joined(pieces)

    assert isinstance(found, kind)
    assert whole is None or (found.to_pylist() if kind is pa.Array else list(found)) == whole


def test_a_column_that_a_piece_has_not_is_none_there() -> None:
    assert join_columns([({"a": [1]}, 1), ({"a": [2, 3], "b": [4, 5]}, 2)]) == {"a": [1, 2, 3], "b": [None, 4, 5]}


def test_rows_that_cannot_be_read_or_lack_something_are_set_aside() -> None:
    rows = [Row(why="torn"), Row({"x": 1, "y": 2}, {"id": "b"}), Row({"x": 3}, {"id": "c"}), Row({"x": 5, "y": 6})]

    batch = of_rows(rows, 10, (["x", "y"], ["id"]), position=99)

    assert (batch.first_row, batch.length, batch.position) == (10, 4, 99)
    assert batch.broken == {0: "torn", 2: "it has no 'y'"}
    assert {name: column.tolist() for name, column in batch.columns.items()} == {"x": [1, 1, 1, 5], "y": [2, 2, 2, 6]}
    assert batch.kept == {"id": [None, "b", "c", None]}


def test_a_batch_of_broken_rows_has_no_columns_and_keeps_what_is_kept() -> None:
    batch = of_rows([Row({"y": 1}, {"id": 7})], 0, (["x"], ["id"]))

    assert (batch.columns, batch.kept, batch.length) == ({}, {"id": [7]}, 1)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 2], np.int64),
        ([1, 2.5], np.float64),
        ([True], np.bool_),
        ([[1, 2], [3, 4]], np.int64),
        ([np.ones(2, ">f4")], np.float32),
        ([np.ones(2, np.uint8), np.ones(2, np.float32)], None),
        ([np.int64(1), 2], np.int64),
        ([[1], [1, 2]], None),
        (["a"], None),
        ([b"a"], None),
        ([None, 1], None),
        ([1, "a"], None),
        ([{"a": 1}], None),
        ([], None),
    ],
)
def test_numbers_of_one_shape_are_an_array_and_all_else_stays(values: list[Any], dtype: Any) -> None:
    found = as_column(values)

    if dtype is None:
        assert found is values
    else:
        assert found.dtype == np.dtype(dtype) and found.dtype.isnative


@pytest.mark.parametrize(
    ("value", "wanted"), [(1.5, True), ([1, 2.5], True), (1, False), ([1, 2], False), ([], False), ("1.5", False), ([[1.0], []], False)]
)
def test_what_has_floating_point_in_it(value: Any, wanted: bool) -> None:
    assert is_fractional(value) is wanted
    assert has_fraction([1, "a", value]) is wanted


def test_whole_numbers_of_a_fractional_column_become_floating_point() -> None:
    rows = [Row({"x": 1, "y": [1]}), Row({"x": 2, "y": [1, 2]}), Row({"x": 3, "y": "a"})]

    batch = of_rows(rows, 0, (["x", "y"], []), fractional={"x", "y"})

    assert batch.columns["x"].dtype == np.float64
    assert repr(batch.columns["y"]) == "[[1.0], [1.0, 2.0], 'a']"


BEYOND, LARGE = (1 << 63) + 1, (1 << 53) + 1


@pytest.mark.parametrize(
    ("values", "fractional", "dtype", "rounded"),
    [
        ([1, LARGE, BEYOND], (), np.int64, [2]),
        ([BEYOND, -1], (), np.int64, [0]),
        ([1, LARGE, 1.5], (), np.float64, [1]),
        ([1, LARGE], ("x",), np.float64, [1]),
        ([LARGE, -LARGE], (), np.int64, []),
        ([10**19, 1], (), np.float64, []),
        ([12345678901234567000, float("nan"), float("inf")], (), np.float64, []),
        ([[1, 2.5], [LARGE, 1], [1, 1]], (), np.float64, [1]),
        ([np.uint64(BEYOND)], (), np.uint64, []),
    ],
)
def test_a_whole_number_that_would_be_rounded_costs_its_row(values: list[Any], fractional: Any, dtype: Any, rounded: list[int]) -> None:
    batch = of_rows([Row({"x": value}) for value in values], 0, (["x"], []), fractional=fractional)

    assert sorted(batch.broken) == rounded
    assert batch.columns["x"].dtype == dtype
