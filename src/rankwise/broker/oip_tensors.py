"""Python values and torch tensors as tensors of the Open Inference Protocol, and back to arrays. Pure."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from rankwise.pool.memory.encoding import torch_dtype
from rankwise.protocol import DATATYPES, Array, bfloat16, check_shape, datatype_of, from_json, from_raw, to_raw


def as_array(value: Any) -> Array:
    """A tensor, an array, a number or a text in the protocol's types; of BYTES, an array of objects. Raises TypeError."""
    if hasattr(value, "detach"):  # a tensor; torch itself is not needed here
        value = _of_tensor(value.detach().cpu())
    if isinstance(value, (str, bytes)):
        value = np.array(value, object)
    array = np.asarray(value) if isinstance(value, (np.ndarray, np.generic, bool, int, float)) else None
    if array is None or not datatype_of(array) or not _are_words(array):
        raise TypeError(f"{getattr(value, 'dtype', type(value).__name__)} is not among {', '.join(DATATYPES)}")
    return array


def as_tensor(array: Array, torch: Any) -> Any:
    """A torch tensor; an array stays one where torch has no such type."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array) if array.dtype.kind != "O" else array


def raw_of(array: Array) -> memoryview:
    return memoryview(to_raw(array, datatype_of(array)))


def read_array(datatype: Any, shape: Any, data: Any) -> Array:
    """An array, which may be written to, from raw bytes, base64 or a list. Raises ValueError with what is wrong."""
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        raise ValueError(f"there is no datatype {str(datatype)[:40]!r}, but {', '.join(DATATYPES)}")
    sizes = check_shape(shape)
    if isinstance(data, list):
        return from_json(datatype, sizes, data)
    try:
        return from_raw(datatype, sizes, bytearray(base64.b64decode(data, validate=True) if isinstance(data, str) else data))
    except TypeError as error:
        raise ValueError(str(error)) from None


def _are_words(array: Array) -> bool:
    return array.dtype.kind != "O" or all(type(item) in (str, bytes) for item in array.ravel().tolist())


def _of_tensor(tensor: Any) -> Array:
    if str(tensor.dtype) != "torch.bfloat16":
        array: Array = tensor.numpy()
        return array
    carried: Array = tensor.contiguous().view(torch_dtype("int16")).numpy()
    return carried.view(bfloat16())
