"""torch's default dtype and device, autocast and determinism, which models may set and all of a process share: each keeps its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeGuard, TypeVar

import torch
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks, _has_any_global_hook

T = TypeVar("T")


@dataclass(frozen=True)
class Defaults:
    """What torch computes with where nobody says. Models may set it, in `build` or in `forward`, and all of a process share it."""

    dtype: torch.dtype
    device: torch.device | None
    autocast: tuple[tuple[str, bool, torch.dtype], ...]  # device type, whether it is on, to what
    is_deterministic: bool
    only_warns: bool

    @classmethod
    def now(cls) -> Defaults:
        autocast = tuple((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda"))
        is_deterministic = torch.are_deterministic_algorithms_enabled()
        only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
        return cls(torch.get_default_dtype(), _device_of(_device_context()), autocast, is_deterministic, only_warns)

    def restore(self) -> None:
        now = Defaults.now()
        if now.dtype is not self.dtype:
            torch.set_default_dtype(self.dtype)
        if now.device != self.device:
            torch.set_default_device(self.device)
        if replace(now, dtype=self.dtype, device=self.device) == self:
            return
        for kind, is_on, dtype in self.autocast:
            torch.set_autocast_enabled(kind, is_on)
            torch.set_autocast_dtype(kind, dtype)
        torch.use_deterministic_algorithms(self.is_deterministic, warn_only=self.only_warns)


# torch.get_default_device() would make a tensor to find out
_DEVICE: Any = getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None) or threading.local()


def _device_context() -> Any:
    """Of this thread. Asking for an attribute that is not there costs a microsecond of each task, so from then on it is there."""
    try:
        return _DEVICE.device_context
    except AttributeError:
        _DEVICE.device_context = None  # as torch leaves it where the default is the CPU again
        return None


def _device_of(context: Any) -> torch.device | None:
    return context.device if context is not None else None


_AS_STARTED = Defaults.now()


def built_with_defaults(build: Callable[[], T]) -> tuple[T, Defaults | None]:
    """What `build` makes, and the defaults it has set, if any, which are that model's; everybody else has what was before."""
    others = Defaults.now()
    try:
        built, now = build(), Defaults.now()
        return built, now if now != others else None
    finally:
        others.restore()


_of_packages: dict[str, Defaults] = {}  # what was set while they were imported


def use_defaults_of_imports(package: str, others: Defaults) -> None:
    """What a module sets when it is imported is for all of its models, though it is imported for the first one only. `others` is what was
    before this one was looked for."""
    now = Defaults.now()
    if now != others:
        _of_packages[package] = now
    elif package in _of_packages:
        _of_packages[package].restore()


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
            yield _shorter(self._run) if _only_calls_forward(self._run) else self._run
        finally:
            self._end(*others)

    def _begin(self) -> tuple[torch.dtype, Any, tuple[bool, bool], Defaults]:
        """What others have. Nearly always no mode is on, and only that is asked: all of them would take some microseconds of each task."""
        on = _modes_on()
        others = torch.get_default_dtype(), _device_context(), on, Defaults.now() if any(on) else _AS_STARTED
        if self.own is not None:
            self.own.restore()
        return others

    def _end(self, dtype: torch.dtype, context: Any, on: tuple[bool, bool], others: Defaults) -> None:
        if self.own is not None or torch.get_default_dtype() is not dtype or _device_context() is not context or _modes_on() != on:
            self.own = Defaults.now()
            replace(others, dtype=dtype, device=_device_of(context)).restore()


def _modes_on() -> tuple[bool, bool]:
    return torch._C._is_any_autocast_enabled(), torch._C._get_deterministic_algorithms()


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _shorter(run: torch.nn.Module) -> Callable[..., Any]:
    """Calls its `forward`, for as long as a call does nothing else: one call may register a hook, or replace what the next one finds."""
    kind, hooks, pre_hooks = type(run), run._forward_hooks, run._forward_pre_hooks

    def call(*inputs: Any) -> Any:
        if hooks or pre_hooks or _global_forward_hooks or _global_forward_pre_hooks or type(run) is not kind:
            return run(*inputs)
        return run.forward(*inputs)

    return call


def _only_calls_forward(run: Any) -> TypeGuard[torch.nn.Module]:
    """Whether calling this would do nothing but call its `forward`: a module of Python code without hooks, compilation or tracing."""
    return (
        isinstance(run, torch.nn.Module)
        and not isinstance(run, torch.jit.ScriptModule)
        and type(run).__call__ is torch.nn.Module.__call__
        and getattr(run._call_impl, "__func__", None) is torch.nn.Module._call_impl
        and run._compiled_call_impl is None
        and not any(getattr(run, name) for name in _HOOKS)
        and not _has_any_global_hook()  # type: ignore[no-untyped-call]
        and not torch._C._get_tracing_state()
    )
