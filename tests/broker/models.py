"""Models for the tests of brokers."""

from __future__ import annotations

import time
from typing import Any

import torch


class Slow(torch.nn.Module):
    """Its input, after half a second."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.5)
        return x


def pair() -> Any:
    return lambda x: (x.sum(1), x.shape[0])
