"""Remembers a model's parameters as DDP saw them, and finds what was changed since."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import nn

from rankwise.causes import load_cause
from rankwise.errors import TrainError
from rankwise.findings import Finding

_MAX_NAMED = 5


class Seen(NamedTuple):
    """What must stay as it was: the parameter itself, and how it was."""

    parameter: int
    device: torch.device
    dtype: torch.dtype
    requires_grad: bool


# Beside the wrapper, not on it: the user may save or copy the whole object.
_wrapped: weakref.WeakKeyDictionary[nn.Module, dict[str, Seen]] = weakref.WeakKeyDictionary()


def remember(wrapper: nn.Module) -> None:
    _wrapped[wrapper] = _seen(wrapper)


def check_unchanged(wrapper: nn.Module) -> None:
    """Raise if the parameters are no longer those DDP knows; nothing is known of a model that `wrap` did not see."""
    if wrapper in _wrapped and (finding := find_change(_wrapped[wrapper], _seen(wrapper))):
        raise TrainError(finding)


def check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Raise if the optimizer would update parameters that are not the model's."""
    own = {id(parameter) for parameter in model.parameters()}
    held = [parameter for parameters in optimizer.param_groups for parameter in parameters["params"]]
    if strangers := [parameter for parameter in held if id(parameter) not in own]:
        shapes = listed([str(tuple(parameter.shape)) for parameter in strangers])
        summary = f"the optimizer holds {len(strangers)} of {len(held)} parameters that are not the model's: shapes {shapes}"
        raise TrainError(load_cause("RW702").finding(summary, certain=True))


def find_change(before: dict[str, Seen], now: dict[str, Seen]) -> Finding | None:
    """What is different now, worst first."""
    added = [name for name in now if name not in before]
    gone = [name for name in before if name not in now]
    both = [name for name in now if name in before]
    replaced = [name for name in both if now[name].parameter != before[name].parameter]
    if added or gone or replaced:
        parts = {"added": added, "removed": gone, "replaced": replaced}
        return _changed("; ".join(f"{what}: {listed(names)}" for what, names in parts.items() if names))
    for name in both:
        if now[name].device != before[name].device:
            summary = f"parameter {name} was on {before[name].device} when DDP wrapped the model and is on {now[name].device} now"
            return load_cause("RW701").finding(summary, certain=True)
    if frozen := [name for name in both if now[name].requires_grad != before[name].requires_grad]:
        return _changed(f"frozen or thawed: {listed(frozen)}")
    if retyped := [name for name in both if now[name].dtype != before[name].dtype]:
        return _changed(f"of another dtype: {listed([f'{name} ({now[name].dtype})' for name in retyped])}")
    return None


def listed(names: list[str]) -> str:
    """`a, b, c and 7 more`: short however many there are."""
    shown = ", ".join(names[:_MAX_NAMED])
    return shown if len(names) <= _MAX_NAMED else f"{shown} and {len(names) - _MAX_NAMED} more"


def _changed(what: str) -> Finding:
    why = "DDP noted the parameters when it wrapped the model; it does not average the gradients of any others"
    return load_cause("RW217").finding(f"the model's parameters were changed after wrapping: {what}", certain=True, why=why)


def _seen(wrapper: nn.Module) -> dict[str, Seen]:
    module: Any = getattr(wrapper, "module", wrapper)
    return {name: Seen(id(p), p.device, p.dtype, p.requires_grad) for name, p in module.named_parameters()}
