"""Watches a model's parameters: which of them a backward reaches, and what was changed since DDP wrapped them."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parallel.distributed import _find_tensors  # the tensors that DDP finds in an output
from torch.nn.parameter import is_lazy

from rankwise.causes import load_cause
from rankwise.errors import TrainError
from rankwise.findings import Finding
from rankwise.train.batches import moved
from rankwise.train.errors import train_error

_MAX_NAMED = 5


class ParameterState(NamedTuple):
    """What must stay the same: the identity of a parameter, and its properties."""

    parameter: int
    device: torch.device
    dtype: torch.dtype
    requires_grad: bool


# Beside the wrapper, not on it: the user may save or copy the whole object.
_wrapped: weakref.WeakKeyDictionary[nn.Module, dict[str, ParameterState]] = weakref.WeakKeyDictionary()


def remember(wrapper: nn.Module) -> None:
    _wrapped[wrapper] = _seen(wrapper)


def check_unchanged(wrapper: nn.Module) -> None:
    """Raise if the parameters are no longer those that DDP knows. A model that `wrap` did not make is not checked."""
    if wrapper in _wrapped and (finding := find_change(_wrapped[wrapper], _seen(wrapper))):
        raise TrainError(finding)


def check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Raise if the optimizer would update parameters that are not the model's."""
    own = {id(parameter) for parameter in model.parameters()}
    held = [parameter for parameters in optimizer.param_groups for parameter in parameters["params"]]
    if strangers := [parameter for parameter in held if id(parameter) not in own]:
        shapes = listed([str(tuple(parameter.shape)) for parameter in strangers])
        summary = f"the optimizer holds {len(strangers)} of {len(held)} parameters that are not the model's: shapes {shapes}"
        raise train_error("RW702", summary)


def find_change(before: dict[str, ParameterState], now: dict[str, ParameterState]) -> Finding | None:
    """A finding about the worst change; None if nothing has changed."""
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
    """`a, b, c and 7 more`: a short text for any number of names."""
    shown = ", ".join(names[:_MAX_NAMED])
    return shown if len(names) <= _MAX_NAMED else f"{shown} and {len(names) - _MAX_NAMED} more"


def _changed(what: str) -> Finding:
    why = "DDP noted the parameters when it wrapped the model; it does not average the gradients of any others"
    return load_cause("RW217").finding(f"the model's parameters were changed after wrapping: {what}", certain=True, why=why)


def _seen(wrapper: nn.Module) -> dict[str, ParameterState]:
    module: Any = getattr(wrapper, "module", wrapper)
    return {name: ParameterState(id(p), p.device, p.dtype, p.requires_grad) for name, p in module.named_parameters()}


@dataclass(frozen=True)
class DryRun:
    """Parameters that got no gradient, and parameters that got several (re-entrant activation checkpointing)."""

    unused: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()


def dry_run(model: nn.Module, sample: Any, device: torch.device) -> DryRun:
    """Run one forward and backward and see which parameters get gradients. `sample` is the model's argument (a tuple: arguments, a dict:
    keyword arguments), or a function of the model that returns a loss."""
    if any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        with torch.no_grad():
            _loss(model, sample, device)  # gives lazy parameters their shape
    times: Counter[str] = Counter()
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    with _left_as_it_was(model, device):
        hooks = [
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: times.update([name]))  # type: ignore[no-untyped-call]
            for name, parameter in named
        ]
        try:
            loss = _loss(model, sample, device)
            if loss is not None:
                loss.backward()  # type: ignore[no-untyped-call]
        finally:
            for hook in hooks:
                hook.remove()
    unused = tuple(name for name, _ in named if not times[name])
    return DryRun(unused, tuple(name for name, _ in named if times[name] > 1))


def _loss(model: nn.Module, sample: Any, device: torch.device) -> torch.Tensor | None:
    if callable(sample):
        result = sample(model)
    elif isinstance(sample, dict):
        result = model(**moved(sample, device))
    else:
        result = model(*moved(sample if isinstance(sample, (tuple, list)) else (sample,), device))
    parts = [tensor.float().sum() for tensor in _find_tensors(result) if tensor.requires_grad]  # type: ignore[no-untyped-call]
    return torch.stack(parts).sum() if parts else None


@contextmanager
def _left_as_it_was(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Puts back gradients, buffers (running statistics) and the random generators."""
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    buffers = [
        (module, name, buffer, None if buffer is None else buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
    ]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.enable_grad():
            yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for module, name, buffer, before in buffers:
                module._buffers[name] = buffer  # `forward` may have put another one in its place
                if buffer is not None and before is not None:
                    buffer.copy_(before)
