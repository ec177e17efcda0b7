"""Converts columns to the Arrow arrays that parts hold, and back to the same dtype and shape; tells what an Arrow type is."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from rankwise.offline.lazy import pa
from rankwise.offline.row_batches import Column, is_arrow
from rankwise.offline.values import is_utf8

Facts = dict[str, Any]  # what the Arrow array itself cannot say; it can be written as JSON


def encode(column: Column) -> tuple[Any, Facts]:
    """The column as an Arrow array, and what `decode` needs to know about it."""
    if is_arrow(column):
        return column, {}
    if isinstance(column, np.ndarray):
        width = column.dtype.itemsize * math.prod(column.shape[1:])
        rows = pa.Array.from_buffers(pa.binary(width), len(column), [None, pa.py_buffer(np.ascontiguousarray(column))])
        return rows, {"dtype": column.dtype.str, "shape": column.shape[1:]}
    if all(value is None or (type(value) is str and is_utf8(value)) for value in column):
        return pa.array(column, pa.string()), {"holds": "texts"}
    texts, sizes = pa.string(), pa.list_(pa.int64())
    either = pa.struct([("json", texts), ("dtype", texts), ("shape", sizes), ("data", pa.large_binary())])  # the first, or the other three
    return pa.array([_stored(value) for value in column], either), {"holds": "anything"}


def decode(array: Any, facts: Facts) -> Column:
    if "dtype" in facts:
        return np.frombuffer(array.buffers()[1], facts["dtype"]).reshape(len(array), *facts["shape"])
    if facts.get("holds") == "anything":
        return [_restored(stored) for stored in array.to_pylist()]
    return array.to_pylist() if facts else array


def _stored(value: Any) -> dict[str, Any]:
    if isinstance(value, (np.ndarray, np.generic)):
        return {"dtype": value.dtype.str, "shape": list(value.shape), "data": value.tobytes()}
    return {"json": json.dumps(value)}


def _restored(stored: dict[str, Any]) -> Any:
    if stored["json"] is not None:
        return json.loads(stored["json"])
    return np.frombuffer(stored["data"], stored["dtype"]).reshape(stored["shape"])[()]


@cache
def is_number(kind: Any) -> bool:
    """Cached, because every column of every batch is asked."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def is_lists(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_tensors(column: Any) -> bool:
    """Whether it is an Arrow array of tensors of one shape."""
    return hasattr(column, "to_numpy_ndarray")


def tensors(column: Any) -> list[Any]:
    """One array per row, None for a null."""
    whole = iter(column.drop_null().to_numpy_ndarray())
    return [next(whole) if valid else None for valid in column.is_valid().to_pylist()]


def has_type(kind: Any, test: Callable[[Any], bool]) -> bool:
    """Whether `test` is true of a type, or of a type within it."""
    inner = [kind.value_type] if pa.types.is_dictionary(kind) else [kind.field(i).type for i in range(kind.num_fields)]
    return test(kind) or any(has_type(each, test) for each in inner)


def with_inner(kind: Any, changed: Callable[[Any], Any]) -> Any:
    """The type with its inner types changed, if it is one of lists, structs or maps; otherwise the type itself."""
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind):
        return (pa.list_ if types.is_list(kind) else pa.large_list)(kind.value_field.with_type(changed(kind.value_type)))
    if types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(changed(kind.value_type)), kind.list_size)
    if types.is_struct(kind):
        return pa.struct([field.with_type(changed(field.type)) for field in kind])
    if types.is_map(kind):
        key, item = (field.with_type(changed(field.type)) for field in (kind.key_field, kind.item_field))
        return pa.map_(key, item, keys_sorted=kind.keys_sorted)
    return kind
