"""The models of `ray_peers.py` and `broker_peers.py`, by import path, so that every way builds the same ones."""

from __future__ import annotations

import numpy as np
import torch

NAMES = ("narrow", "middle", "wide")
_WIDTHS = dict(zip(NAMES, (32, 64, 128)))
INPUTS = 64


def build(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    width = _WIDTHS[name]
    return torch.nn.Sequential(torch.nn.Linear(INPUTS, width), torch.nn.ReLU(), torch.nn.Linear(width, 10)).eval()


def build_sums() -> torch.nn.Module:
    return Sums()


class Sums(torch.nn.Module):
    """Of each row: reads all of a large input, computes little."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(1)


def build_middle() -> torch.nn.Module:
    return build("middle")


def inputs_of(name: str, rows: int) -> torch.Tensor:
    """The same for every way."""
    torch.manual_seed(1)
    return torch.randn(rows, 1000 if name == "sums" else INPUTS)


class All:
    """What an actor of one's own holds: all models, one thread."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.models = {name: build(name) for name in NAMES} | {"sums": Sums()}

    def run(self, name: str, x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return self.models[name](x)

    def run_array(self, name: str, x: np.ndarray) -> np.ndarray:
        """The same for arrays, which Ray sends faster than tensors."""
        return self.run(name, torch.from_numpy(x.copy())).numpy()

    def rows(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """As Ray Data calls it."""
        with torch.inference_mode():
            return {"y": self.models["middle"](torch.as_tensor(batch["data"])).numpy()}

    __call__ = rows
