"""Does a saved state fit what it is to be loaded into? Both sides of every mismatch, before anything is changed."""

from __future__ import annotations

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
        return _misfit(f"{path} holds no {name}", f"it holds {saved}")
    if isinstance(thing, nn.Module):
        return _model_misfit(thing, state[name], path)
    if isinstance(thing, torch.optim.Optimizer):
        now = [len(parameters["params"]) for parameters in thing.param_groups]
        then = [len(parameters["params"]) for parameters in state[name]["param_groups"]]
        if now != then:
            return _misfit(f"{path} is of an optimizer with {then} parameters in its groups, this one has {now}", "")
    return None


def _model_misfit(model: nn.Module, saved: dict[str, torch.Tensor], path: Path) -> Finding | None:
    own = model.state_dict()
    missing, unknown = [key for key in own if key not in saved], [key for key in saved if key not in own]
    if missing or unknown:
        parts = [f"without {listed(missing)}"] if missing else []
        parts += [f"with {listed(unknown)}"] if unknown else []
        return _misfit(f"{path} is of another model: {', '.join(parts)}", "")
    for key, tensor in own.items():
        if isinstance(tensor, torch.Tensor) and tensor.shape != saved[key].shape:
            return _misfit(f"{path} has {key} of shape {tuple(saved[key].shape)}, the model has {tuple(tensor.shape)}", "")
    return None


def _misfit(summary: str, why: str) -> Finding:
    return load_cause("RW710").finding(summary, certain=True, why=why)
