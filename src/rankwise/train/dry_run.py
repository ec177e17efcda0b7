"""One forward and backward of the plain model, to see which of its parameters get a gradient; leaves the model as it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from rankwise.train.batches import moved


@dataclass(frozen=True)
class DryRun:
    """Parameters that got no gradient, and those that got one more than once (re-entrant activation checkpointing)."""

    unused: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()


def dry_run(model: nn.Module, sample: Any, device: torch.device) -> DryRun:
    """`sample` is what the model is called with (a tuple: its arguments, a dict: its keyword arguments), or a function of the model that
    returns a loss."""
    if any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        with torch.no_grad():
            _loss(model, sample, device)  # gives them their shape
    times: Counter[str] = Counter()
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    with _left_as_it_was(model, device):
        hooks = [parameter.register_post_accumulate_grad_hook(_counting(times, name)) for name, parameter in named]  # type: ignore[no-untyped-call]
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
    parts = [tensor.float().sum() for tensor in _tensors(result) if tensor.requires_grad]
    return torch.stack(parts).sum() if parts else None


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    """The tensors DDP would find in an output."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from _tensors(value)
    elif hasattr(output, "__dataclass_fields__"):
        yield from _tensors(vars(output))


def _counting(times: Counter[str], name: str) -> Any:
    def count(_: torch.Tensor) -> None:
        times[name] += 1

    return count


@contextmanager
def _left_as_it_was(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Puts back gradients, buffers (running statistics) and the random generators."""
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.enable_grad():
            yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
