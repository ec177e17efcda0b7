"""Columns as the Arrow arrays that parts hold, and back: what is read is what was written, to the dtype and the shape of each entry."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from rankwise.offline.batches import Column, is_arrow
from rankwise.offline.lazy import pa
from rankwise.offline.values import is_utf8

Array = np.ndarray[Any, Any]
Facts = dict[str, Any]  # what the Arrow array itself cannot say; it can be written as JSON


def encode(column: Column) -> tuple[Any, Facts]:
    """The column as an Arrow array, and what `decode` needs to know about it."""
    if is_arrow(column):
        return column, {}
    if isinstance(column, np.ndarray):
        return _of_numbers(column), {"dtype": column.dtype.str, "shape": column.shape[1:]}
    if all(value is None or (type(value) is str and is_utf8(value)) for value in column):
        return pa.array(column, pa.string()), {"holds": "texts"}
    return pa.array([_stored(value) for value in column], _any_value()), {"holds": "anything"}


def decode(array: Any, facts: Facts) -> Column:
    if "dtype" in facts:
        flat = array.values if pa.types.is_fixed_size_list(array.type) else array  # flatten() would import pyarrow.compute first
        numbers = flat.to_numpy(zero_copy_only=False).view(facts["dtype"])
        return numbers.reshape(len(array), *facts["shape"])
    if facts.get("holds") == "anything":
        return [_restored(stored) for stored in array.to_pylist()]
    return array.to_pylist() if facts else array


def _of_numbers(column: Array) -> Any:
    """A row of several numbers is a list of fixed size; a complex number is two."""
    flat = np.ascontiguousarray(column).reshape(-1)
    is_complex = flat.dtype.kind == "c"
    numbers = pa.array(flat.view(flat.real.dtype) if is_complex else flat)
    if column.ndim == 1 and not is_complex:
        return numbers
    width = math.prod(column.shape[1:]) * (2 if is_complex else 1)
    return pa.Array.from_buffers(pa.list_(numbers.type, width), len(column), [None], children=[numbers])


def _any_value() -> Any:
    """Of one entry, either `json` or the other three."""
    return pa.struct([("json", pa.string()), ("dtype", pa.string()), ("shape", pa.list_(pa.int64())), ("data", pa.large_binary())])


def _stored(value: Any) -> dict[str, Any]:
    if isinstance(value, (np.ndarray, np.generic)):
        return {"dtype": value.dtype.str, "shape": list(value.shape), "data": value.tobytes()}
    return {"json": json.dumps(value)}


def _restored(stored: dict[str, Any]) -> Any:
    if stored["json"] is not None:
        return json.loads(stored["json"])
    return np.frombuffer(stored["data"], stored["dtype"]).reshape(stored["shape"])[()]
