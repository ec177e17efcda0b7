"""The models that are measured, and what peers run in their workers: the same models, built once per process and kept."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

_cache: dict[str, torch.nn.Module] = {}


def identity() -> torch.nn.Module:
    return torch.nn.Identity()


def tiny() -> torch.nn.Module:
    return torch.nn.Linear(10, 1)


def mlp() -> torch.nn.Module:
    return torch.nn.Sequential(*[layer for _ in range(4) for layer in (torch.nn.Linear(1024, 1024), torch.nn.ReLU())])


def cnn() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(32, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(), torch.nn.Linear(64, 10),
    )  # fmt: skip


def transformer() -> torch.nn.Module:
    layer = torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


ROW = {"tiny": (10,), "mlp": (1024,), "cnn": (3, 64, 64), "transformer": (32, 128)}
INPUTS = {name: (1, *row) for name, row in ROW.items()}
BUILDERS = {"identity": identity, "tiny": tiny, "mlp": mlp, "cnn": cnn, "transformer": transformer}


def cached(name: str) -> torch.nn.Module:
    """`tiny3` is the third tiny model."""
    if name not in _cache:
        torch.set_num_threads(1)
        _cache[name] = BUILDERS[name.rstrip("0123456789")]().eval()
    return _cache[name]


def peer_torch(name: str, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return cached(name)(x)


def peer_numpy(name: str, x: Any) -> Any:
    with torch.inference_mode():
        return cached(name)(torch.from_numpy(x)).numpy()


def peer_numpy_pair(pair: tuple[str, Any]) -> Any:
    return peer_numpy(*pair)


def pid_after(seconds: float) -> int:
    """Which worker has run this; it takes so long that the others get theirs as well."""
    time.sleep(seconds)
    return os.getpid()


def alone(name: str, rows: int, count: int, pipe: Any) -> None:
    """Run the model on each word, on as many inputs of its own, and keep what comes out: the same work, with nothing to send."""
    model, inputs = cached(name), [torch.rand(rows, *ROW[name]) for _ in range(count)]
    with torch.inference_mode():
        while pipe.recv():
            outputs = [model(x) for x in inputs]
            pipe.send("done")
            del outputs
