"""Pinned memory between the lanes and a GPU: the card copies from and to it by itself, at full speed."""

from __future__ import annotations

from typing import Any

import torch

from rankwise.pool.nested import each_where_possible

_LEAST_BYTES = 64 << 10  # below, pinning costs more than it saves


class Staging:
    """Reuses torch's own cache of pinned blocks; what is fetched is complete when `fetch` returns."""

    def pin(self, value: Any) -> Any:
        return each_where_possible(value, _pinned) if torch.cuda.is_available() else value

    def fetch(self, value: Any) -> Any:
        fetched = each_where_possible(value, _fetched)
        torch.cuda.synchronize()
        return fetched


def _pinned(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.nbytes < _LEAST_BYTES:
        return value
    return torch.empty(value.shape, dtype=value.dtype, pin_memory=True).copy_(value)


def _fetched(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.device.type == "cpu":
        return value
    block = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.nbytes >= _LEAST_BYTES)
    return block.copy_(value, non_blocking=True)
