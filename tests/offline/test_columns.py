"""Columns as Arrow arrays and back: the same values, dtypes and shapes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rankwise.offline.columns import decode, encode, has_type, is_lists, is_number, tensors, with_inner

EXACT = [np.arange(6, dtype=">i2").reshape(3, 2), np.zeros((2, 0)), np.zeros(0, np.float32), np.arange(8, dtype=np.int8)[::2]]


def back(column: Any) -> Any:
    array, facts = encode(column)
    return decode(array, json.loads(json.dumps(facts)))


@pytest.mark.parametrize("column", [*EXACT, np.array([1 + 2j]), np.array([[True], [False]])])
def test_an_array_comes_back_with_its_dtype_and_shape(column: Any) -> None:
    found = back(column)

    assert found.dtype == column.dtype and found.shape == column.shape
    assert np.array_equal(found, column)


@pytest.mark.parametrize(
    "column",
    [["a", None, "ä"], [None], [], [1, "a", None], [{"a": [1.5, None]}, "b"], ["half of a pair \ud800"], [True, 1, 1.0], [["a"], []]],
)
def test_a_list_comes_back_as_it_was(column: list[Any]) -> None:
    assert repr(back(column)) == repr(column)


def test_arrays_of_different_shapes_come_back_each_with_its_own() -> None:
    found = back([np.ones((1, 2), np.float32), np.int8(3), "a"])

    assert (found[0].dtype, found[0].shape) == (np.float32, (1, 2))
    assert type(found[1]) is np.int8 and found[1] == 3
    assert found[2] == "a"


def test_what_is_of_arrow_stays_so() -> None:
    column = pa.array([1, None])

    assert back(column) is column


@pytest.mark.parametrize(
    ("kind", "number", "lists"),
    [
        (pa.int8(), True, False),
        (pa.float16(), True, False),
        (pa.bool_(), True, False),
        (pa.string(), False, False),
        (pa.timestamp("s"), False, False),
        (pa.decimal128(3), False, False),
        (pa.list_(pa.int8()), False, True),
        (pa.large_list(pa.int8()), False, True),
        (pa.list_(pa.int8(), 2), False, True),
        (pa.struct([("a", pa.int8())]), False, False),
    ],
)
def test_questions_about_a_type(kind: Any, number: bool, lists: bool) -> None:
    assert (is_number(kind), is_lists(kind)) == (number, lists)


def test_a_null_among_tensors_is_none() -> None:
    kind = pa.fixed_shape_tensor(pa.int64(), (2,))
    column = pa.ExtensionArray.from_storage(kind, pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2)))

    assert [None if one is None else one.tolist() for one in tensors(column)] == [[1, 2], None, [3, 4]]


NESTED = [
    pa.list_(pa.int8()), pa.large_list(pa.int8()), pa.list_(pa.int8(), 2), pa.struct([("a", pa.string()), ("b", pa.int8())]),
    pa.map_(pa.string(), pa.int8()),
]  # fmt: skip


@pytest.mark.parametrize("kind", [pa.int8(), *NESTED, pa.dictionary(pa.int32(), pa.int8())])
def test_a_type_within_a_type_is_found(kind: Any) -> None:
    assert has_type(kind, pa.types.is_int8)
    assert not has_type(kind, pa.types.is_int64)


@pytest.mark.parametrize("kind", NESTED)
def test_a_type_with_others_in_it(kind: Any) -> None:
    def wider(inner: Any) -> Any:
        return pa.int64() if inner == pa.int8() else inner

    assert str(with_inner(kind, wider)) == str(kind).replace("int8", "int64")
    assert with_inner(pa.int8(), wider) == pa.int8()


def test_fields_keep_whether_they_may_be_null_and_maps_their_order() -> None:
    field = pa.field("a", pa.int8(), nullable=False)

    assert not with_inner(pa.struct([field]), lambda inner: pa.int64()).field(0).nullable
    assert with_inner(pa.map_(pa.string(), pa.int8(), keys_sorted=True), lambda inner: inner).keys_sorted
