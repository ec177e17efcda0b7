"""safetensors: dtypes that numpy does not know."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rankwise.offline.row_batches import Selection
from rankwise.offline.source import open_source


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float16", "int16"]
)
def test_what_numpy_does_not_know_is_read_as_float32(tmp_path: Path, dtype: str) -> None:
    """All there is of a dtype, in rows of 256."""
    import torch
    from safetensors.torch import save_file

    kind = getattr(torch, dtype)
    bits = torch.arange(256, dtype=torch.uint8) if kind.itemsize == 1 else torch.arange(-(1 << 15), 1 << 15).to(torch.int16)
    x = bits.view(kind).reshape(-1, 64)
    save_file({"x": x}, tmp_path / "x.safetensors")

    batches = list(open_source(tmp_path / "x.safetensors", Selection()).batches(3))

    wanted = x if dtype in ("float16", "int16") else x.float()
    np.testing.assert_array_equal(np.concatenate([batch.columns["x"] for batch in batches]), wanted.numpy())
