"""Looks at mixed precision and clipping: in which order the loss is scaled, gradients unscaled and clipped, and the step made."""

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .. import hooks
from . import record, steps, window


def attach(module: ModuleType) -> None:
    """After `torch.amp.grad_scaler`."""
    cls = module.GradScaler
    cls.scale = _noted(cls.scale, _scaled)
    cls.unscale_ = _noted(cls.unscale_, _unscaled)
    cls.step = _noted(cls.step, _stepping, _stepped)
    cls.update = _noted(cls.update, _updated)


def attach_clipping(module: ModuleType) -> None:
    """After `torch.nn.utils.clip_grad`."""
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        setattr(module, name, _noted(getattr(module, name), _clipped))


def _noted(original: Callable[..., Any], before: Callable[..., Any], after: Callable[..., Any] | None = None) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        before(args, sys._getframe(1))
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            hooks.drop_wrapper_frame(error)
            raise
        finally:
            if after is not None:
                after()

    return call


@record.budgeted
def _scaled(args: Any, frame: Any) -> None:
    if args and args[0].is_enabled() and not sys._getframe(2).f_code.co_name.startswith("apply"):
        window.is_scaled = True
        window.note("g", frame)


@record.budgeted
def _unscaled(args: Any, frame: Any) -> None:
    if args and args[0].is_enabled():
        window.is_scaled = False
        window.note("u", frame)


@record.budgeted
def _stepping(args: Any, frame: Any) -> None:
    steps.in_scaler = bool(args) and args[0].is_enabled()


def _stepped() -> None:
    steps.in_scaler = False
    window.is_scaled = False


@record.budgeted
def _updated(args: Any, frame: Any) -> None:
    window.note("U", frame)


@record.budgeted
def _clipped(args: Any, frame: Any) -> None:
    window.note("c" if window.is_scaled else "C", frame)
