"""Runs the probe's parts right after the modules they attach to are imported.

Loaded into every Python process of a job, so it imports nothing that Python has not loaded by itself: `typing` alone costs milliseconds.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # not from `typing`, whose import costs milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, TypeVar

    Function = TypeVar("Function", bound=Callable[..., Any])

_reported: set[tuple[int, str]] = set()  # steps that failed: process, step

# module: the part of the probe to load when it has been imported, and the function to call with it
_after = {
    "torch.distributed.distributed_c10d": ("collectives", "attach"),
    "torch.distributed._functional_collectives": ("functional", "attach"),
    "torch.nn.parallel.distributed": ("ddp", "attach"),
    "torch.distributed.fsdp._fully_shard._fsdp_state": ("fsdp", "attach"),
    "torch.distributed.fsdp.fully_sharded_data_parallel": ("fsdp", "attach_fsdp1"),
    "torch.utils.data.dataloader": ("ddp", "attach_dataloader"),
    "torch.utils.data._utils.fetch": ("audit.data", "attach_fetchers"),
    "torch.optim.optimizer": ("audit.steps", "attach"),
    "torch.nn.modules.module": ("audit.steps", "attach_module"),
    "torch.nn.parallel.data_parallel": ("audit.events", "attach"),
    "torch.nn.utils.clip_grad": ("audit.scaling", "attach_clipping"),
    "torch.amp.grad_scaler": ("audit.scaling", "attach"),
    "torch.serialization": ("audit.written_files", "attach"),
    "torch.random": ("audit.seeds", "attach"),
    "torch._utils": ("worker_errors", "attach"),
    "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler": ("children", "watch_torchrun"),
    "torch._dynamo.trace_rules": ("collectives", "hide_from_compiler"),
    "multiprocessing.process": ("children", "watch_start"),
    "multiprocessing.popen_fork": ("children", "watch_poll"),
    "multiprocessing.popen_forkserver": ("children", "watch_poll"),
    "subprocess": ("children", "watch_subprocess"),
}


def install() -> None:
    if os.environ.get("RANKWISE_AUDIT", "off") == "off":
        for name in [name for name, (part, _) in _after.items() if part.startswith("audit.")]:
            del _after[name]
    sys.meta_path.insert(0, _PostImport())
    for name in list(_after):
        after(name, *_after.pop(name))


def after(name: str, part: str, function: str) -> None:
    """Have a part of the probe attach to a module: now, if it has been imported, else as soon as it is."""
    if name in sys.modules:
        guarded(_attach)(part, function, sys.modules[name])
    else:
        _after[name] = (part, function)


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, but an exception goes to the journal instead of the script."""

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            note_broken(function.__name__, error)
            return None

    return run


def wrap(
    original: Callable[..., Any], before: Callable[..., Any] | None = None, after: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """The function itself, with `before(frame, …)` ahead of each call and `after(frame, result, …)` behind each that returned.

    `frame` is the caller's, and the call's own arguments follow. Neither function may raise.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        if before is not None:
            before(frame, *args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            drop_wrapper_frame(error)
            raise
        if after is not None:
            after(frame, result, *args, **kwargs)
        return result

    return dress(call, original)


def surround(original: Callable[..., Any], begin: Callable[..., Any], end: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, between `begin(frame, args, kwargs)` and `end(opened, result, error)`, which gets what `begin` returned.

    `frame` is the caller's. Neither function may raise.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        opened = begin(sys._getframe(1), args, kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            end(opened, None, error)
            drop_wrapper_frame(error)
            raise
        end(opened, result, None)
        return result

    return dress(call, original)


def dress(wrapper: Function, original: Any) -> Function:
    """As `functools.wraps`, with a module in which pickle finds the wrapper, and without importing functools."""
    for name in ("__name__", "__qualname__", "__doc__"):
        setattr(wrapper, name, getattr(original, name))
    wrapper.__dict__.update(getattr(original, "__dict__", {}))
    wrapper.__module__ = "os" if original.__module__ == "posix" else original.__module__
    wrapper.__wrapped__ = original  # type: ignore[attr-defined]
    return wrapper


def drop_wrapper_frame(error: BaseException) -> None:
    """Remove our wrapper's frame from the user's traceback; a bare `raise` afterwards adds no frame."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def note_broken(what: str, error: BaseException) -> None:
    """Write once per process that a step failed, so that a step which fails at every call does not cost a line each time."""
    try:
        if (os.getpid(), what) in _reported:
            return
        _reported.add((os.getpid(), what))
        from . import journal

        journal.write("broken", what=what, error=f"{type(error).__name__}: {error}"[:500])
    except Exception:
        pass


class _PostImport:
    """A meta path finder that asks the other finders, and runs our part after the module's own code."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in _after:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    _wrap_loader(spec.loader, name)
                return spec
        return None


def _wrap_loader(loader: Any, name: str) -> None:
    original = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        try:
            original(module)
        except BaseException as error:
            drop_wrapper_frame(error)
            raise
        loader.__dict__.pop("exec_module", None)
        if name in _after:
            guarded(_attach)(*_after.pop(name), module)

    try:
        loader.exec_module = exec_module
    except AttributeError:  # a loader written in C may take no attributes: then this module is not hooked
        pass


def _attach(part: str, function: str, module: ModuleType) -> None:
    getattr(__import__(f"{__package__}.{part}", fromlist=[function]), function)(module)
