"""The element types that travel through lanes, by the names torch and numpy share."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import numpy as np

# Both libraries know these, under the same name and with the same bytes.
SHARED = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
# Only torch knows these; numpy carries their bytes as integers of the same width.
CARRIED: dict[str, np.dtype[Any]] = {
    "bfloat16": np.dtype("int16"),
    "complex32": np.dtype("int32"),
    "float8_e4m3fn": np.dtype("int8"),
    "float8_e5m2": np.dtype("int8"),
    "float8_e4m3fnuz": np.dtype("int8"),
    "float8_e5m2fnuz": np.dtype("int8"),
}
NUMPY: dict[str, np.dtype[Any]] = (
    {name: np.dtype(name) for name in SHARED} | CARRIED | {"raw": np.dtype("uint8")}
)  # bytes that are no array
_NAME_OF_CHAR = {np.dtype(name).char: name for name in SHARED} | {"q": "int64", "Q": "uint64", "l": "int64", "L": "uint64"}


def name_of_numpy(dtype: np.dtype[Any]) -> str:
    """`float32` for numpy's float32; empty for what torch has no type for, or not in this byte order."""
    # By its letter: looking a dtype up in a dict takes ten times as long.
    return _NAME_OF_CHAR.get(dtype.char, "") if dtype.isnative else ""


def torch_module() -> Any | None:
    """torch, if the process has imported it: the pool's parent side never does so by itself."""
    return sys.modules.get("torch")


@cache
def torch_dtype(name: str) -> Any:
    return getattr(sys.modules["torch"], name)


@cache
def name_of_torch(dtype: Any) -> str:
    """`float32` for torch.float32; empty for what cannot travel as plain bytes (quantized types)."""
    name = str(dtype).removeprefix("torch.")
    return name if name in NUMPY else ""
