"""Makes values of models and datasets storable: arrays of numbers, or JSON values. Knows tensors without importing torch."""

from __future__ import annotations

import base64
import copy
import dataclasses
import datetime
import decimal
import enum
import pathlib
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np

from rankwise.pool.api.model import by_text

Array = np.ndarray[Any, Any]
NUMBERS = "biufc"  # numpy's kinds of dtypes that are numbers
EXACT = 1 << 53  # up to here float64 holds every whole number
MASKED = "it has masked entries: fill them, as with .filled(nan)"


def is_tensor(value: Any) -> bool:
    """Does not import torch, which the side of `predict` that reads and writes never does: a caller with a tensor has done so."""
    return hasattr(value, "detach") and hasattr(value, "numpy")


def is_utf8(text: str) -> bool:
    """False if the text has half of a surrogate pair, or surrogates that stand for bytes which are not UTF-8."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def is_numbers(value: Any) -> bool:
    return is_tensor(value) or (isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in NUMBERS)


def is_masked(value: Any) -> bool:
    """Whether it is one of numpy's masked arrays with a masked entry: as a plain array it would have some number there."""
    return isinstance(value, np.ma.MaskedArray) and bool(np.ma.is_masked(value))


def as_array(value: Any) -> Array:
    """Numbers as an array in the machine's byte order and a dtype that files know: bfloat16 and float8 become float32."""
    if is_masked(value):
        raise ValueError(MASKED)
    if is_tensor(value):
        dense = value.detach() if str(value.layout) == "torch.strided" else value.detach().to_dense()
        is_narrow = str(dense.dtype) == "torch.bfloat16" or "float8" in str(dense.dtype)
        value = (dense.float() if is_narrow else dense).cpu().resolve_conj().resolve_neg().contiguous().numpy()
    array = np.asarray(value)
    dtype = array.dtype.newbyteorder("=")
    if dtype in (np.dtype(np.longdouble), np.dtype(np.clongdouble)):
        dtype = np.dtype(np.float64 if dtype.kind == "f" else np.complex128)
    return array.astype(dtype, copy=False)


def own(value: Any) -> Any:
    """A copy of a value that the model or its owner may write to; any other value itself."""
    if is_tensor(value):
        return value.detach().clone()
    return copy.deepcopy(value) if isinstance(value, (np.ndarray, list, tuple, dict, bytearray)) else value


def copied(column: Any) -> Any:
    """A copy of the column in memory of its own, which neither a model nor a worker uses again."""
    return np.array(column) if isinstance(column, np.ndarray) else [copied(v) if isinstance(v, np.ndarray) else v for v in column]


def is_held_by_float(whole: int) -> bool:
    """Whether a 64-bit float equals this number, exactly or in the digits that the float is written with."""
    try:
        number = float(whole)
    except OverflowError:
        return False
    return whole == int(number) or whole == int(decimal.Decimal(repr(number)))


def nbytes_of(value: Any) -> int:
    """The bytes of a column, or of an entry of one; only about, if it is neither array nor text."""
    if isinstance(value, (list, tuple, dict)):
        return 8 + sum(map(nbytes_of, value.values() if isinstance(value, dict) else value))
    return len(value) if isinstance(value, (str, bytes)) else int(getattr(value, "nbytes", 8))


def storable(value: Any) -> Any:
    """One entry of a column: numbers keep their dtype, any other value becomes a JSON value."""
    return as_array(value)[()] if is_numbers(value) else plain(value)


def plain(value: Any) -> Any:
    """One value as JSON can have it; raises TypeError if that is impossible. Bytes become base64, times ISO 8601, decimals their digits."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.datetime64):
        return str(value)
    if isinstance(value, np.generic):
        return plain(value.item())
    if is_numbers(value):
        array = as_array(value)
        return _texts(array.tolist()) if array.dtype.kind == "c" else array.tolist()
    if isinstance(value, np.ndarray):
        return [plain(item) for item in (value.astype(str) if value.dtype.kind == "M" else value).tolist()]
    if (named := named_parts(value)) is not None:
        return {name: plain(item) for name, item in by_text(named).items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return _scalar(value)


def _scalar(value: Any) -> Any:
    if isinstance(value, (bool, int, float, str)):  # an enumeration, say
        kind = next(kind for kind in (bool, int, float, str) if isinstance(value, kind))
        return kind(value.value if isinstance(value, enum.Enum) else value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, (complex, uuid.UUID, pathlib.PurePath)):
        return str(value)
    raise TypeError(f"a {type(value).__name__} cannot be written; numbers, texts, and lists and dictionaries of them can")


def named_parts(value: Any) -> Mapping[Any, Any] | None:
    """The named parts of a dictionary, a named tuple or a dataclass; None for anything else."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def _texts(value: Any) -> Any:
    return [_texts(item) for item in value] if isinstance(value, list) else str(value)
