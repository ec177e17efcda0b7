"""Models for jobs: slow ones, picky ones, and one that ends its process."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from tests.offline.inputs import WIDTH


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 3))


class Slow(nn.Module):
    """Takes its time over each batch, so that there is a middle of the job to be killed in."""

    def __init__(self) -> None:
        super().__init__()
        self.net = build()
        self.pause_s = float(os.environ.get("PREDICT_PAUSE_S", "0.02"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.pause_s)
        if bool((x[:, 0] > 2.5).any()):
            raise ValueError("too large")
        return self.net(x)


def slow() -> nn.Module:
    return Slow()


class Halved(nn.Module):
    """Half of its inputs, in the type that they come in."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x) + (x / 2).to(x.dtype) + (y / 2).to(y.dtype)


def halved() -> nn.Module:
    return Halved()


class Doubling(nn.Module):
    """Twice its input, in the type that it comes in."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.add(x, x)


def doubling() -> nn.Module:
    return Doubling()


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = build()

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.net(x)
        return {"score": y.bfloat16(), "label": y.argmax(1)}


def several() -> nn.Module:
    return Several()


class Hungry(nn.Module):
    """Runs out of memory over more than 32 rows."""

    def __init__(self) -> None:
        super().__init__()
        self.net = build()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 32:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
        return self.net(x)


def hungry() -> nn.Module:
    return Hungry()


class Deadly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = build()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x[:, 0] > 2.5).any()):
            os._exit(9)
        return self.net(x)


def deadly() -> nn.Module:
    return Deadly()


def two(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a * 10 + b


def build_two() -> object:
    return two


def shout(texts: list[str]) -> list[str]:
    return [text.upper() for text in texts]


def build_shout() -> object:
    return shout


def load_doubled(path: str) -> torch.Tensor:
    import numpy as np

    return torch.from_numpy(np.load(path)) * 2


def raising() -> nn.Module:
    raise RuntimeError("no such layer")


def number() -> int:
    return 3


def quitting() -> Callable[[torch.Tensor], torch.Tensor]:
    """Ends its process for one of the rows."""

    def quits(x: torch.Tensor) -> torch.Tensor:
        if bool((x == 7).any()):
            sys.exit(0)
        return x

    return quits


def exit_at_once() -> None:
    sys.exit(0)


class Swapping(nn.Module):
    """Its second batch puts new.pt in the place of the weights, once, and ends the worker."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self._calls = build(), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._calls += 1
        folder = Path(os.environ["PREDICT_SWAP"])
        if self._calls == 2 and (folder / "new.pt").exists():
            os.replace(folder / "new.pt", folder / "last.pt")
            os._exit(9)
        return self.net(x)


def swapping() -> nn.Module:
    return Swapping()


def breaking_gpu() -> Callable[[torch.Tensor], torch.Tensor]:
    """Twice its rows; after one over 90, which the GPU notices in this call or the next, nothing runs in this process any more."""
    broken: list[bool] = []

    def run(x: torch.Tensor) -> torch.Tensor:
        if bool((x > 90).any()):
            broken.append(True)
        if broken:
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")
        return x * 2

    return run
