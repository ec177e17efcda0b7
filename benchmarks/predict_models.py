"""The models that `predict` and the loop by hand run over rows of eight numbers."""

from __future__ import annotations

from torch import nn

COLUMNS = [f"x{i}" for i in range(8)]


def tiny() -> nn.Module:
    return _mlp(16)


def small() -> nn.Module:
    return _mlp(64, 64)


def large() -> nn.Module:
    return _mlp(256, 256)


def _mlp(*widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, width in zip((len(COLUMNS), *widths), widths):
        layers += [nn.Linear(before, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 1))


MODELS = {"tiny": tiny, "small": small, "large": large}
