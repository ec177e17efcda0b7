"""Kinds of columns as types of pyarrow."""

from __future__ import annotations

from typing import Any

from rankwise.offline.sinks.kinds import BOOL, TEXT, Arrow, Kind, List, Number, Struct
from rankwise.offline.sources.tables import arrow, with_inner
from rankwise.offline.values import is_utf8


class NoCommonType(Exception):
    """The values of a column are of kinds that no type holds together without loss."""


def arrow_type(kind: Kind) -> Any:
    """TypeError for numbers that tables do not know."""
    if kind is None:
        return arrow("null")()
    if kind in (BOOL, TEXT):
        return arrow("bool_" if kind == BOOL else "string")()
    if isinstance(kind, Number):
        return _number_type(kind)
    if isinstance(kind, List):
        return arrow("list_")(arrow_type(kind.inner))
    if isinstance(kind, Struct) and kind.fields and all(map(is_utf8, kind.fields)):  # Parquet has none without fields
        return arrow("struct")([(name, arrow_type(inner)) for name, inner in kind.fields.items()])
    if isinstance(kind, Arrow):
        return without_dictionaries(kind.type)
    raise NoCommonType


def _number_type(kind: Number) -> Any:
    if "complex" in kind.dtype:
        raise TypeError(f"it is {kind.dtype}")
    if kind.size > (0 if "float" in kind.dtype else 2 if kind.dtype == "uint64" else 1):
        raise NoCommonType
    return arrow("from_numpy_dtype")(kind.dtype)


def without_dictionaries(kind: Any) -> Any:
    """Which rows share a dictionary depends on how parts were cut, so their values are written themselves."""
    types = arrow("types")
    if types.is_dictionary(kind):
        return without_dictionaries(kind.value_type)
    return with_inner(kind, without_dictionaries)
