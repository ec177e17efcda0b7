"""Models for the server's benchmark and soak."""

from __future__ import annotations

import time

import torch


class Times(torch.nn.Module):
    """A factor, some milliseconds, some megabytes."""

    def __init__(self, factor: float, ms: float = 0.0, megabytes: int = 0) -> None:
        super().__init__()
        self._factor, self._ms = factor, ms
        self.weight = torch.nn.Parameter(torch.zeros(megabytes * 250_000), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._ms:
            time.sleep(self._ms / 1e3)
        return x * self._factor


def small() -> torch.nn.Module:
    return Times(2.0)


def slow() -> torch.nn.Module:
    return Times(3.0, ms=5)


def large() -> torch.nn.Module:
    """Two of these do not fit into the soak's budget beside each other."""
    return Times(5.0, megabytes=40)
