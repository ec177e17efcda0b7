"""What can be done to a batch without knowing what is in it: move it to a device, cut it short, count its samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def moved(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on the device."""
    return _mapped(batch, lambda tensor: tensor.to(device, non_blocking=True))


def emptied(batch: Any) -> Any:
    """The batch with no sample left in it, shapes and types kept."""
    return _mapped(batch, lambda tensor: tensor[:0])


def num_samples_in(batch: Any) -> int:
    """The length of the first tensor in the batch, as PyTorch's own collation lays it out."""
    found: list[int] = []
    _mapped(batch, lambda tensor: found.append(len(tensor)) or tensor)  # type: ignore[func-returns-value]
    if found:
        return found[0]
    return len(batch)


def _mapped(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(batch, torch.Tensor):
        return change(batch) if batch.dim() else batch
    if isinstance(batch, dict):
        return {key: _mapped(value, change) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_mapped(value, change) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(_mapped(value, change) for value in batch)
    return batch
