"""Models for tests/gpu/test_pool.py."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from typing import Any, NamedTuple

import torch


def mlp() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(*[layer for _ in range(4) for layer in (torch.nn.Linear(512, 512), torch.nn.ReLU())])


def cnn() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())


class Where(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"device": str(x.device), "visible": os.environ["CUDA_VISIBLE_DEVICES"], "count": torch.cuda.device_count()}


class Found(NamedTuple):
    kind: str
    parts: OrderedDict[str, torch.Tensor]


class Finder(torch.nn.Module):
    """Returns what detectors and transformers return: tensors inside containers of their own."""

    def forward(self, given: dict[str, torch.Tensor]) -> Found:
        return Found(given["a"].device.type, OrderedDict(doubled=given["a"] * 2))


class Hungry(torch.nn.Module):
    """Needs more memory than any GPU has for more than eight rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 8:
            torch.empty(1 << 50, dtype=torch.uint8, device=x.device)
        return x + 1


class Weighty(torch.nn.Module):
    def __init__(self, megabytes: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(megabytes * 250_000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight[0]


class Looking(torch.nn.Module):
    """Looks its rows up in a table of ten; a row that is not there is a device-side assert."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(x.long()).sum(-1) * 0 + x * 2


class Hanging(torch.nn.Module):
    """In Python, in a kernel that it waits for, or in one that it leaves running."""

    def forward(self, how: str, x: torch.Tensor) -> Any:
        if how == "python":
            time.sleep(600)
        elif how != "not at all":
            torch.cuda._sleep(10**14)
        return x.sum().item() if how == "waits" else x * 2


class Keeping(torch.nn.Module):
    """Keeps 4 GB from each call to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.append(torch.empty(4 << 30, dtype=torch.uint8, device=x.device))
        return x + 1


class ToSparse(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.to_sparse() if x.layout is torch.strided else x * 2, x.to_dense().to_sparse_csr()


def looking() -> torch.nn.Module:
    return Looking()


def hanging() -> torch.nn.Module:
    return Hanging()


def where() -> torch.nn.Module:
    return Where()


def hungry() -> torch.nn.Module:
    return Hungry()


def weighty(megabytes: int) -> torch.nn.Module:
    return Weighty(megabytes)


class Vocabulary(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = torch.nn.Embedding(100, 16), torch.nn.Linear(16, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(ids).mean(1))


def vocabulary() -> torch.nn.Module:
    return Vocabulary()
