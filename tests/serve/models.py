"""Models for the server's tests: what a worker builds when a test names `tests.serve.models:…`."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch


class Sums(torch.nn.Module):
    """Two inputs of a row each: what they make together, and what is left."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": a + b, "difference": a - b}


class Echo(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x


class Moody(torch.nn.Module):
    """Twice its input; a first number below 0 is an exception, from 1000 on it is so many milliseconds of sleep."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = float(x.flatten()[0]) if x.numel() else 0.0
        if first < 0:
            raise ValueError("this row is bad")
        if first >= 1000:
            time.sleep(first / 1e6)
        return x * 2


def sums() -> torch.nn.Module:
    return Sums()


def echo() -> torch.nn.Module:
    return Echo()


def moody() -> torch.nn.Module:
    return Moody()


def shout(words: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """BYTES in, BYTES out."""
    return np.array([word.upper() for word in words.ravel().tolist()], object).reshape(words.shape)


def shouting() -> Any:
    return shout


def linear() -> torch.nn.Module:
    return torch.nn.Linear(4, 2)


def broken() -> torch.nn.Module:
    raise RuntimeError("it cannot be built")


class Plus(torch.nn.Module):
    """Its input and a number."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.number


def plus(number: float) -> torch.nn.Module:
    return Plus(number)


class Chance(torch.nn.Module):
    """Another number each time: an answer that comes twice was kept."""

    def forward(self, x: Any) -> Any:
        return torch.rand(1, dtype=torch.float64) + 0 * (x.double().sum() if hasattr(x, "double") else 0)


def chance() -> torch.nn.Module:
    return Chance()
