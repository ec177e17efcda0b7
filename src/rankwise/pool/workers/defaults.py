"""torch's default dtype and device, which models may set and all of a process share: each model keeps its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeGuard, TypeVar

import torch
from torch.nn.modules.module import _has_any_global_hook

T = TypeVar("T")


@dataclass(frozen=True)
class Defaults:
    """What torch makes tensors of where nobody says. Models may set it, in `build` or in `forward`, and all of a process share it."""

    dtype: torch.dtype
    device: torch.device | None

    @classmethod
    def now(cls) -> Defaults:
        context = _device_context()
        return cls(torch.get_default_dtype(), context.device if context is not None else None)

    def restore(self) -> None:
        if torch.get_default_dtype() is not self.dtype:
            torch.set_default_dtype(self.dtype)
        if Defaults.now().device != self.device:
            torch.set_default_device(self.device)


_DEVICE: Any = (
    getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None) or threading.local()
)  # torch.get_default_device() would make a tensor to find out


def _device_context() -> Any:
    """Of this thread. Asking for an attribute that is not there costs a microsecond of each task, so from then on it is there."""
    try:
        return _DEVICE.device_context
    except AttributeError:
        _DEVICE.device_context = None  # as torch leaves it where the default is the CPU again
        return None


def built_with_defaults(build: Callable[[], T]) -> tuple[T, Defaults | None]:
    """What `build` makes, and the defaults it has set, if any, which are that model's; everybody else has what was before."""
    others = Defaults.now()
    try:
        built, now = build(), Defaults.now()
        return built, now if now != others else None
    finally:
        others.restore()


class WithOwnDefaults:
    """A model that runs with the defaults it has set, and leaves everybody else theirs."""

    def __init__(self, run: Callable[..., Any], own: Defaults | None = None) -> None:
        self._run, self.own = run, own

    def __call__(self, *inputs: Any) -> Any:
        others = self._begin()
        try:
            return self._run(*inputs)
        finally:
            self._end(*others)

    @contextmanager
    def several(self) -> Iterator[Callable[..., Any]]:
        """For calls that follow each other: defaults and hooks are looked at once for all of them, which takes a fifth of a small model's
        time."""
        others = self._begin()
        try:
            yield self._run.forward if _only_calls_forward(self._run) else self._run
        finally:
            self._end(*others)

    def _begin(self) -> tuple[torch.dtype, Any]:
        others = torch.get_default_dtype(), _device_context()
        if self.own is not None:
            self.own.restore()
        return others

    def _end(self, dtype: torch.dtype, context: Any) -> None:
        if self.own is not None or torch.get_default_dtype() is not dtype or _device_context() is not context:
            self.own = Defaults.now()
            Defaults(dtype, context.device if context is not None else None).restore()


_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")


def _only_calls_forward(run: Any) -> TypeGuard[torch.nn.Module]:
    """Whether calling this would do nothing but call its `forward`: a module of Python code without hooks, compilation or tracing."""
    kind = type(run)
    return (
        isinstance(run, torch.nn.Module)
        and not isinstance(run, torch.jit.ScriptModule)
        and kind.__call__ is torch.nn.Module.__call__
        and kind._call_impl is torch.nn.Module._call_impl
        and run._compiled_call_impl is None
        and not any(getattr(run, name) for name in _HOOKS)
        and not _has_any_global_hook()  # type: ignore[no-untyped-call]
        and not torch._C._get_tracing_state()
    )
