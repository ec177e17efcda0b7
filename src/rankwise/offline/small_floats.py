"""bfloat16 and the kinds of float8, which numpy does not know, as float32, which holds each of their values exactly."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_MANTISSA_AND_BIAS = {"float8_e4m3fn": (3, 7), "float8_e4m3fnuz": (3, 8), "float8_e5m2": (2, 15), "float8_e5m2fnuz": (2, 16)}


def holder_of(dtype: str) -> np.dtype[Any]:
    """The numpy dtype that holds the bits of a torch dtype."""
    if dtype == "bfloat16":
        return np.dtype("<u2")
    return np.dtype("u1") if dtype.startswith("float8") else np.dtype(dtype).newbyteorder("<")


def as_float32(bits: Array, dtype: str) -> Array:
    """The numbers these bits stand for; those of a dtype that numpy knows are numbers already."""
    if dtype == "bfloat16":  # the upper half of a float32
        return (bits.astype(np.uint32) << 16).view(np.float32)
    if dtype.startswith("float8"):
        return _float8_values(dtype)[bits]
    return bits.astype(bits.dtype.newbyteorder("="), copy=False)


@cache
def _float8_values(dtype: str) -> Array:
    """What each of the 256 codes means."""
    codes = np.arange(256)
    if dtype == "float8_e8m0fnu":  # powers of two
        return np.where(codes == 255, np.nan, np.exp2(codes - 127.0)).astype(np.float32)
    mantissa_bits, bias = _MANTISSA_AND_BIAS[dtype]
    exponent, fraction = (codes & 127) >> mantissa_bits, (codes & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    size = np.where(exponent == 0, np.ldexp(fraction, 1 - bias), np.ldexp(1 + fraction, exponent - bias))
    values = np.where(codes >= 128, -size, size)
    if dtype.endswith("fnuz"):  # no minus zero: its code is the only NaN
        values[128] = np.nan
    elif dtype == "float8_e4m3fn":
        values[[127, 255]] = np.nan
    else:  # as float16 does it
        values[[124, 252]] = np.inf, -np.inf
        values[[125, 126, 127, 253, 254, 255]] = np.nan
    return values.astype(np.float32)
