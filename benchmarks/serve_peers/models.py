"""The three models that every server of the benchmark serves, and the rows they take."""

from __future__ import annotations

import torch

SHAPES = {"tiny": (16,), "mlp": (784,), "conv": (3, 32, 32)}


def tiny() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(16, 10)


def mlp() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)
    )


def conv() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [
        torch.nn.Conv2d(3, 16, 3, stride=2),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, stride=2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
    ]
    return torch.nn.Sequential(*layers, torch.nn.Linear(32 * 7 * 7, 10))


BUILDS = {"tiny": tiny, "mlp": mlp, "conv": conv}
