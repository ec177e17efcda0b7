"""Looks at mixed precision and clipping: in which order the loss is scaled, gradients unscaled and clipped, and the step made."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from .. import hooks
from . import record, steps, window


def attach(module: ModuleType) -> None:
    cls = module.GradScaler
    cls.scale = hooks.wrap(cls.scale, _noting("g", is_scaled=True))
    cls.unscale_ = hooks.wrap(cls.unscale_, _noting("u", is_scaled=False))
    cls.step = hooks.surround(cls.step, _stepping, _stepped)


def attach_clipping(module: ModuleType) -> None:
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        setattr(module, name, hooks.wrap(getattr(module, name), _clipped))


def _noting(letter: str, is_scaled: bool) -> Callable[..., None]:
    """Notes a call of a GradScaler that is in use, and whether gradients are multiplied from then on."""

    @record.budgeted
    def note(frame: Any, scaler: Any, *_: Any, **__: Any) -> None:
        if scaler.is_enabled():
            window.is_scaled = is_scaled
            window.note(letter, frame)

    return note


def _stepping(_frame: Any, args: Any, _kwargs: Any) -> None:
    steps.in_scaler = args[0].is_enabled()


def _stepped(*_: Any) -> None:
    steps.in_scaler = window.is_scaled = False


@record.budgeted
def _clipped(frame: Any, *_: Any, **__: Any) -> None:
    window.note("c" if window.is_scaled else "C", frame)
