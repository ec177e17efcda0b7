"""Tensors of the Open Inference Protocol between numpy and the wire: raw bytes, JSON lists, and the length-prefixed elements of BYTES.

Little-endian, row-major. Elements are never touched one by one in Python, except those of BYTES, which have no common size. What is
wrong with a tensor is a ValueError that says so; what a model gave and cannot be sent is a TypeError.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
# The datatypes of the Open Inference Protocol, as numpy has them; little-endian. BF16 and BYTES have no type of numpy's own.
NUMPY: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype("bool"), "UINT8": np.dtype("<u1"), "UINT16": np.dtype("<u2"), "UINT32": np.dtype("<u4"), "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"), "INT16": np.dtype("<i2"), "INT32": np.dtype("<i4"), "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"), "FP32": np.dtype("<f4"), "FP64": np.dtype("<f8"),
}  # fmt: skip
NAMES = {dtype: name for name, dtype in NUMPY.items()}
DATATYPES = (*NUMPY, "BF16", "BYTES")
MOST_DIMENSIONS = 32  # numpy takes 64, but no real tensor has so many
_LENGTH = struct.Struct("<I")
_MOST_ELEMENTS = 1 << 48  # limits the product of sizes, also of a tensor that is empty because one size is 0


@dataclass(frozen=True)
class TensorSpec:
    """An input or output: -1 in the shape is any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@cache
def bfloat16() -> np.dtype[Any]:
    import ml_dtypes

    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found


def dtype_of(datatype: str) -> np.dtype[Any]:
    return bfloat16() if datatype == "BF16" else NUMPY[datatype]


def datatype_of(array: Array) -> str:
    """The datatype of what a model returned; empty where the protocol has no name for it."""
    kind = array.dtype.kind
    if kind in "SUO":
        return "BYTES"
    return NAMES.get(array.dtype.newbyteorder("<"), "") if kind in "biuf" else "BF16" if array.dtype.name == "bfloat16" else ""


def check_shape(shape: Any) -> tuple[int, ...]:
    if type(shape) not in (list, tuple) or any(type(size) is not int or size < 0 for size in shape):
        raise ValueError("its shape has to be a list of sizes from 0 on")
    if len(shape) > MOST_DIMENSIONS or math.prod([size for size in shape if size]) >= _MOST_ELEMENTS:
        raise ValueError("there is no tensor of that shape")
    return tuple(shape)


# ---- raw bytes


def from_raw(datatype: str, shape: tuple[int, ...], raw: Any) -> Array:
    """An array over these very bytes (of BYTES: an array of bytes objects)."""
    if datatype == "BYTES":
        return _from_framed(shape, raw)
    dtype = dtype_of(datatype)
    expected = math.prod(shape) * dtype.itemsize
    if len(raw) != expected:
        raise ValueError(f"{list(shape)} of {datatype} takes {expected} bytes, but {len(raw)} were given")
    array = np.frombuffer(raw, dtype).reshape(shape)
    if datatype == "BOOL" and array.size and array.view(np.uint8).max() > 1:
        raise ValueError("a BOOL is a byte 0 or 1")
    return array


def to_raw(array: Array, datatype: str) -> memoryview | bytes:
    """The bytes of an output, without a copy where they already have the right layout."""
    if datatype == "BYTES":
        items = [_as_bytes(item) for item in array.ravel().tolist()]
        return b"".join([part for item in items for part in (_LENGTH.pack(len(item)), item)])
    array = np.ascontiguousarray(array, dtype_of(datatype))
    flat: Any = array.reshape(-1).view(np.uint8)
    return memoryview(flat) if array.size else b""


def _from_framed(shape: tuple[int, ...], raw: Any) -> Array:
    data, at, end, expected = bytes(raw), 0, len(raw), math.prod(shape)
    items: list[bytes] = []
    while at < end and len(items) <= expected:
        size = _LENGTH.unpack_from(data, at)[0] if at + 4 <= end else end
        if at + 4 + size > end:
            raise ValueError(f"element {len(items)} of BYTES is cut off")
        items.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    if len(items) != expected or at != end:
        raise ValueError(f"{list(shape)} of BYTES has {expected} elements, but others were given")
    return of_objects(items, shape)


def of_objects(items: Sequence[Any], shape: tuple[int, ...]) -> Array:
    array: Array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(shape)


def _as_bytes(item: Any) -> bytes:
    if isinstance(item, bytes):
        return item
    if isinstance(item, str):
        return item.encode()
    raise TypeError(f"the model gave {type(item).__name__} where a BYTES output holds text or bytes")


# ---- JSON


def from_json(datatype: str, shape: tuple[int, ...], data: Any) -> Array:
    """An array from nested or flat lists."""
    if datatype == "BF16":
        raise ValueError("BF16 can only be sent as binary data")
    if type(data) is not list:
        raise ValueError("its data has to be a list")
    if datatype == "BYTES":
        return _words(shape, data)
    found = _plain(data)
    if datatype == "UINT64" and found.dtype.kind in "fO":  # numpy makes floating point of small and very large numbers together
        found = _very_large(found, data)
    if datatype != "BOOL" and found.dtype.kind in "iuf" and _holds_truth(found, data):
        raise ValueError(f"its data holds true or false, which is not {datatype}")
    return converted(datatype, found, shape)


def _holds_truth(found: Array, data: list[Any]) -> bool:
    """Whether there is a true or false among the numbers, which numpy takes for 1 and 0; looks only at elements that are 1 or 0."""
    places = np.flatnonzero((found == 0) | (found == 1))
    items = data if found.ndim == 1 or not places.size else _flat(data)
    if places.size <= found.size // 8:
        items = [items[place] for place in places.tolist()]
    return bool in set(map(type, items))


def converted(datatype: str, found: Array, shape: tuple[int, ...]) -> Array:
    """Numbers as the given datatype, whatever type numpy gave them; each has to be a value of the datatype."""
    if found.size != math.prod(shape):
        raise ValueError(f"{list(shape)} has {math.prod(shape)} elements, but {found.size} were given")
    if found.ndim > 1 and found.shape != shape:
        raise ValueError(f"its data has the shape {list(found.shape)}, but {list(shape)} was said")
    dtype, kind = NUMPY[datatype], found.dtype.kind
    if not found.size:
        return np.empty(shape, dtype)
    if datatype == "BOOL":
        is_right = kind == "b" or (kind in "iu" and bool(((found == 0) | (found == 1)).all()))
    elif dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        is_right = kind in "iu" and int(found.min()) >= bounds.min and int(found.max()) <= bounds.max
    else:
        is_right = kind in "iuf"
    if not is_right:
        raise ValueError(f"its data holds something that is not {datatype}")
    with np.errstate(over="ignore"):
        array = found.astype(dtype)
    if dtype.kind == "f" and kind == "f" and np.isinf(array).any() and not np.array_equal(np.isinf(array), np.isinf(found)):
        raise ValueError(f"its data holds a number too large for {datatype}")
    return array.reshape(shape)


def _plain(data: list[Any]) -> Array:
    try:
        return np.array(data)
    except (ValueError, OverflowError, RecursionError):
        raise ValueError("its data is not an even list of numbers") from None


def _very_large(found: Array, data: list[Any]) -> Array:
    whole = np.array(data, object)
    try:
        return whole.astype(np.uint64) if set(map(type, whole.ravel().tolist())) <= {int} else found
    except OverflowError:
        return found


def _words(shape: tuple[int, ...], data: list[Any]) -> Array:
    items = _flat(data)
    if len(items) != math.prod(shape):
        raise ValueError(f"{list(shape)} has {math.prod(shape)} elements, but {len(items)} were given")
    if not all(type(item) is str for item in items):
        raise ValueError("elements of BYTES are texts in JSON")
    try:
        return of_objects([item.encode() for item in items], shape)
    except UnicodeEncodeError:  # half a surrogate pair
        raise ValueError("its data holds text that is not Unicode") from None


def _flat(data: list[Any]) -> list[Any]:
    """The elements of nested lists of equal lengths; of other lists, the lists themselves."""
    items: list[Any] = np.array(data, object).ravel().tolist()
    return items


def to_json(array: Array, datatype: str) -> bytes:
    """A flat list. NaN and infinities are written as Python's json and Triton write them: NaN, Infinity, -Infinity."""
    import orjson

    if datatype == "BF16":
        raise ValueError("BF16 can only be had as binary data")
    if datatype == "BYTES":
        try:
            return orjson.dumps([_as_bytes(item).decode() for item in array.ravel().tolist()])
        except UnicodeDecodeError:
            raise ValueError("it is not text: ask for it as binary data") from None
    flat = np.ascontiguousarray(array, np.dtype(NUMPY[datatype])).reshape(-1)
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        return json.dumps(flat.tolist()).encode()
    return orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY)
