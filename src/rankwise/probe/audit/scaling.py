"""Looks at mixed precision and clipping: in which order the loss is scaled, gradients unscaled and clipped, and the step made."""

from types import ModuleType
from typing import Any

from .. import hooks
from . import record, steps, window


def attach(module: ModuleType) -> None:
    """After `torch.amp.grad_scaler`."""
    cls = module.GradScaler
    cls.scale = hooks.wrap(cls.scale, _scaled)
    cls.unscale_ = hooks.wrap(cls.unscale_, _unscaled)
    cls.step = hooks.surround(cls.step, _stepping, _stepped)
    cls.update = hooks.wrap(cls.update, _updated)


def attach_clipping(module: ModuleType) -> None:
    """After `torch.nn.utils.clip_grad`."""
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        setattr(module, name, hooks.wrap(getattr(module, name), _clipped))


@record.budgeted
def _scaled(frame: Any, scaler: Any, *_: Any, **__: Any) -> None:
    if scaler.is_enabled():
        window.is_scaled = True
        window.note("g", frame)


@record.budgeted
def _unscaled(frame: Any, scaler: Any, *_: Any, **__: Any) -> None:
    if scaler.is_enabled():
        window.is_scaled = False
        window.note("u", frame)


def _stepping(_frame: Any, args: Any, _kwargs: Any) -> None:
    steps.in_scaler = args[0].is_enabled()


def _stepped(*_: Any) -> None:
    steps.in_scaler = False
    window.is_scaled = False


@record.budgeted
def _updated(frame: Any, *_: Any, **__: Any) -> None:
    window.note("U", frame)


@record.budgeted
def _clipped(frame: Any, *_: Any, **__: Any) -> None:
    window.note("c" if window.is_scaled else "C", frame)
