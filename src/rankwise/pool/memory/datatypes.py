"""The datatypes of the Open Inference Protocol, as numpy has them; little-endian. BF16 and BYTES have no type of numpy's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

NUMPY: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype("bool"), "UINT8": np.dtype("<u1"), "UINT16": np.dtype("<u2"), "UINT32": np.dtype("<u4"), "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"), "INT16": np.dtype("<i2"), "INT32": np.dtype("<i4"), "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"), "FP32": np.dtype("<f4"), "FP64": np.dtype("<f8"),
}  # fmt: skip
NAMES = {dtype: name for name, dtype in NUMPY.items()}
DATATYPES = (*NUMPY, "BF16", "BYTES")
MOST_DIMENSIONS = 32  # numpy takes 64; nobody has a tensor like that


@dataclass(frozen=True)
class TensorSpec:
    """An input or output: -1 in the shape is any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]
