"""Tensors of a safetensors file lie one behind the other; anything else was not written by safetensors."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from rankwise.weights.converting import convert_to_safetensors
from rankwise.weights.records import CheckpointError
from tests.weights.bad_files import safetensors_with
from tests.weights.checkpoints import refused

SIZES = {"weight": ([2, 2], 16), "bias": ([2], 8)}


@pytest.mark.parametrize(
    ("weight_at", "bias_at", "size", "said"),
    [(0, 0, 16, "overlaps"), (0, 8, 16, "overlaps"), (0, 24, 32, "hole"), (8, 0, 32, "end at byte"), (4, 20, 28, "hole")],
)
def test_overlaps_and_holes(tmp_path: Path, weight_at: int, bias_at: int, size: int, said: str) -> None:
    header = {
        name: {"dtype": "F32", "shape": SIZES[name][0], "data_offsets": [at, at + SIZES[name][1]]}
        for name, at in (("weight", weight_at), ("bias", bias_at))
    }
    safetensors_with(tmp_path / "x.safetensors", header, bytes(size))

    found = refused(nn.Linear(2, 2), tmp_path / "x.safetensors")

    assert found.code == "RW732"
    assert said in found.why


def test_a_shape_that_no_tensor_has(tmp_path: Path) -> None:
    safetensors_with(tmp_path / "x.safetensors", {"x": {"dtype": "F32", "shape": [0, 1 << 62, 1 << 62], "data_offsets": [0, 0]}}, b"")

    with pytest.raises(CheckpointError, match="is not a shape"):
        convert_to_safetensors(tmp_path / "x.safetensors", tmp_path / "y.safetensors")
