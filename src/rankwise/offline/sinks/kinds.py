"""What the values of a column have in common. Joining kinds is the same in any order of grouping, so a column's kind is its rows' alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from rankwise.offline.batches import Column, is_arrow

Array = np.ndarray[Any, Any]
RAGGED = -1


@dataclass(frozen=True)
class Number:
    """`size` says what integers there are: 0 any float64 holds exactly, 1 int64 holds, 2 only more can."""

    dtype: str
    size: int = 0


@dataclass(frozen=True)
class List:
    inner: Kind
    length: int  # of all lists, or RAGGED


@dataclass(frozen=True)
class Struct:
    fields: dict[str, Kind]


@dataclass(frozen=True)
class Arrow:
    """A kept column's own type."""

    type: Any


Kind = Number | List | Struct | Arrow | str | None  # None: nothing but nulls; a text is one of these
BOOL, TEXT, ANYTHING = "bool", "text", "anything"


def joined_kind(one: Kind, other: Kind) -> Kind:
    if one is None or other is None or one == other:
        return other if one is None else one
    if isinstance(one, Number) and isinstance(other, Number):
        return Number(one.dtype if one.dtype == other.dtype else _wider(one.dtype, other.dtype), max(one.size, other.size))
    if isinstance(one, List) and isinstance(other, List):
        return List(joined_kind(one.inner, other.inner), one.length if one.length == other.length else RAGGED)
    if isinstance(one, Struct) and isinstance(other, Struct):
        names = dict.fromkeys((*one.fields, *other.fields))
        return Struct({name: joined_kind(one.fields.get(name), other.fields.get(name)) for name in names})
    return ANYTHING


def kinds_of(pieces: Iterable[dict[str, Column]]) -> dict[str, Kind]:
    """Of all columns, over all pieces of them."""
    kinds: dict[str, Kind] = {}
    for columns in pieces:
        for name, column in columns.items():
            kinds[name] = joined_kind(kinds.get(name), kind_of_column(column))
    return kinds


def kind_of_column(column: Column) -> Kind:
    if isinstance(column, np.ndarray):
        return _of_array(column, column.shape[1:]) if len(column) else None
    if is_arrow(column):
        return Arrow(column.type) if str(column.type) != "null" else None
    return _of_all(column)


def _of_all(values: Iterable[Any]) -> Kind:
    return reduce(joined_kind, map(_of_value, values), None)


def _of_value(value: Any) -> Kind:
    if value is None or isinstance(value, (bool, str)):
        return None if value is None else TEXT if isinstance(value, str) else BOOL
    if isinstance(value, (np.ndarray, np.generic)):
        return _of_array(np.asarray(value), value.shape)
    if isinstance(value, int):
        return _integer("int64", value, value)
    if isinstance(value, float):
        return _FLOAT
    if isinstance(value, list):
        return List(_of_all(value), len(value))
    return Struct({name: _of_value(item) for name, item in value.items()}) if isinstance(value, dict) else ANYTHING


def _of_array(array: Array, shape: tuple[int, ...]) -> Kind:
    kind: Kind = BOOL if array.dtype.kind == "b" else Number(array.dtype.name)
    if array.dtype.kind in "iu" and array.size:
        kind = _integer(array.dtype.name, int(array.min()), int(array.max()))
    for length in reversed(shape):
        kind = List(kind, length)
    return kind


_FLOAT = Number("float64")


def _integer(dtype: str, least: int, most: int) -> Number:
    if least >= -(2**53) and most <= 2**53:
        return Number(dtype)
    return Number(dtype, 1 if least >= -(2**63) and most < 2**63 else 2)


def _wider(one: str, other: str) -> str:
    """Two that differ. numpy's own rules depend on the order in which three are put together."""
    if "complex" in one + other:
        return "complex128"
    return "float64" if "float" in one + other else "int64"
