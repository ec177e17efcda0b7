"""Saves what a test makes up, and holds a refusal to its word: nothing in the model has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rankwise
from rankwise.weights.tensor_records import CheckpointError


def save(path: Path, state: Any) -> Path:
    torch.save(state, path)
    return path


def values(model: nn.Module) -> dict[str, Any]:
    """A copy of all a model holds: parameters, all buffers, extra state."""
    tensors = {**model.state_dict(), **dict(model.named_buffers())}
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in tensors.items()}


def assert_unchanged(model: nn.Module, before: dict[str, Any]) -> None:
    after = values(model)
    assert after.keys() == before.keys()
    for name, value in before.items():
        same = (
            torch.equal(after[name], value) and after[name].dtype == value.dtype
            if isinstance(value, torch.Tensor)
            else after[name] == value
        )
        assert same, f"a refused checkpoint changes nothing, but {name} is another now"


def refused(model: nn.Module, path: Path, **options: Any) -> rankwise.Finding:
    before = values(model)
    with pytest.raises(CheckpointError) as caught:
        rankwise.load_weights(model, path, **options)
    assert_unchanged(model, before)
    return caught.value.finding
