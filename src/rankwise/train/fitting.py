"""Does a saved state fit what it is to be loaded into? Both sides of every mismatch, before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankwise.causes import load_cause
from rankwise.findings import Finding
from rankwise.train.parameters import listed


def find_misfit(name: str, thing: Any, state: dict[str, Any], path: Path) -> Finding | None:
    """What does not fit; None if it does."""
    if name not in state:
        saved = ", ".join(key for key in state if key not in ("rng", "rankwise"))
        return misfit(f"{path} holds no {name}", f"it holds {saved}")
    if isinstance(thing, nn.Module):
        shapes = {key: getattr(value, "shape", None) for key, value in state[name].items()}
        return find_names_misfit(thing.state_dict(), shapes, path)
    if isinstance(thing, torch.optim.Optimizer):
        now = [len(parameters["params"]) for parameters in thing.param_groups]
        then = [len(parameters["params"]) for parameters in state[name]["param_groups"]]
        if now != then:
            return misfit(f"{path} is of an optimizer with {then} parameters in its groups, this one has {now}")
    return None


def find_names_misfit(own: dict[str, Any], saved: Mapping[str, torch.Size | None], path: Path) -> Finding | None:
    """Names that only one side has, and shapes that differ; `saved` has the shape of each tensor by its name."""
    missing, unknown = [key for key in own if key not in saved], [key for key in saved if key not in own]
    if missing or unknown:
        parts = [f"without {listed(missing)}"] if missing else []
        parts += [f"with {listed(unknown)}"] if unknown else []
        return misfit(f"{path} is of another model: {', '.join(parts)}")
    for key, tensor in own.items():
        if isinstance(tensor, torch.Tensor) and tensor.shape != saved[key]:
            return misfit(f"{path} has {key} of shape {tuple(saved[key] or ())}, the model has {tuple(tensor.shape)}")
    return None


def misfit(summary: str, why: str = "") -> Finding:
    return load_cause("RW710").finding(summary, certain=True, why=why)
