"""Small models: one with buffers of both kinds, one that ties its output to its embedding, one that migrates old checkpoints."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16))
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.body(x)))

    @staticmethod
    def example() -> torch.Tensor:
        return torch.linspace(-1, 1, 20).reshape(5, 4)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.embedding(ids)))

    @staticmethod
    def example() -> torch.Tensor:
        return torch.arange(11)


class Turned(nn.Module):
    """Kept its weight the other way round in version 1, and turns what is not of version 2."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(9.0).reshape(3, 3))

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, metadata: dict[str, Any], *rest: Any) -> None:
        if metadata.get("version") is None or metadata["version"] < 2:
            state[f"{prefix}weight"] = state[f"{prefix}weight"].T
        super()._load_from_state_dict(state, prefix, metadata, *rest)  # type: ignore[misc]
