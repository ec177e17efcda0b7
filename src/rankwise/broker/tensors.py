"""Tensors of the Open Inference Protocol as arrays and as bytes: little-endian, row-major; elements of BYTES after their lengths. Pure."""

from __future__ import annotations

import base64
import math
import struct
import sys
from functools import cache
from typing import Any

import numpy as np

from rankwise.pool.memory.datatypes import DATATYPES, MOST_DIMENSIONS, NAMES, NUMPY

Array = np.ndarray[Any, Any]
_LENGTH = struct.Struct("<I")


def as_array(value: Any) -> Array:
    """A tensor, an array, a number or a text in the protocol's types; of BYTES, an array of objects. Raises TypeError."""
    if hasattr(value, "detach"):  # a tensor; torch itself is not needed here
        value = _of_tensor(value.detach().cpu())
    if isinstance(value, (str, bytes)):
        value = np.array(value, object)
    array = np.asarray(value) if isinstance(value, (np.ndarray, np.generic, bool, int, float)) else None
    if array is None or not datatype_of(array):
        raise TypeError(f"{getattr(value, 'dtype', type(value).__name__)} is not among {', '.join(DATATYPES)}")
    return array


def datatype_of(array: Array) -> str:
    """Empty where the protocol has no name for it."""
    if array.dtype.kind in "SUO":
        return "BYTES" if array.dtype.kind != "O" or all(type(item) in (str, bytes) for item in array.ravel().tolist()) else ""
    return "BF16" if array.dtype.name == "bfloat16" else NAMES.get(array.dtype.newbyteorder("<"), "")


def as_tensor(array: Array, torch: Any) -> Any:
    """What torch has no type for stays as it is."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array) if array.dtype.kind != "O" else array


def raw_of(array: Array) -> memoryview:
    if datatype_of(array) == "BYTES":
        items = [item.encode() if isinstance(item, str) else item for item in array.ravel().tolist()]
        return memoryview(b"".join([part for item in items for part in (_LENGTH.pack(len(item)), item)]))
    flat = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1)
    return flat.view(np.uint8).data if flat.size else memoryview(b"")


def read_array(datatype: Any, shape: Any, data: Any) -> Array:
    """From raw bytes, base64 of them, or a list. Raises ValueError with what is wrong."""
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        raise ValueError(f"there is no datatype {str(datatype)[:40]!r}, but {', '.join(DATATYPES)}")
    if not isinstance(shape, list) or len(shape) > MOST_DIMENSIONS or any(type(n) is not int or not 0 <= n < 1 << 62 for n in shape):
        raise ValueError("its shape has to be a list of sizes")
    try:
        if isinstance(data, list):
            return _listed(data, datatype).reshape(shape)
        raw = base64.b64decode(data, validate=True) if isinstance(data, str) else data
        return _framed(raw, math.prod(shape)).reshape(shape) if datatype == "BYTES" else _numbers(raw, datatype, shape)
    except (OverflowError, TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None


@cache
def bfloat16() -> np.dtype[Any]:
    import ml_dtypes

    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found


def _of_tensor(tensor: Any) -> Array:
    if str(tensor.dtype) != "torch.bfloat16":
        array: Array = tensor.numpy()
        return array
    carried: Array = tensor.contiguous().view(sys.modules["torch"].int16).numpy()  # loaded, or there were no tensor
    return carried.view(bfloat16())


def _numbers(raw: Any, datatype: str, shape: list[int]) -> Array:
    dtype = bfloat16() if datatype == "BF16" else NUMPY[datatype]
    if len(raw) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{shape} of {datatype} takes {math.prod(shape) * dtype.itemsize} bytes, not {len(raw)}")
    array = np.frombuffer(bytearray(raw), dtype).reshape(shape)
    if datatype == "BOOL" and array.size and array.view(np.uint8).max() > 1:
        raise ValueError("a BOOL is a byte 0 or 1")
    return array


def _framed(raw: Any, count: int) -> Array:
    data, at = bytes(raw), 0
    items: list[bytes] = []
    while at < len(data) and len(items) < count:
        size = _LENGTH.unpack_from(data, at)[0] if at + 4 <= len(data) else len(data)
        items.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    if len(items) != count or at != len(data):
        raise ValueError(f"its bytes are not {count} elements of BYTES, each after its length")
    return _objects(items)


def _listed(data: list[Any], datatype: str) -> Array:
    """Each number has to be a value of the type: numpy would cut 1.5 to 1 and take "4" for 4."""
    if datatype == "BYTES":
        if any(type(item) is not str for item in data):
            raise ValueError("a list of BYTES holds texts")
        return _objects([item.encode() for item in data])
    if datatype == "BF16":
        raise ValueError("BF16 goes as bytes, not as a list")
    found, array = np.array(data), np.array(data, NUMPY[datatype])
    is_right = found.dtype.kind in "biuf" and (array.dtype.kind == "f" or np.array_equal(found, array))
    if found.size and not is_right:
        raise ValueError(f"its data holds something that is no {datatype}")
    return array


def _objects(items: list[bytes]) -> Array:
    array: Array = np.empty(len(items), object)
    array[:] = items
    return array
