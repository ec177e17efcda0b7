"""Marks each forward of a sharded model: FSDP gathers its parameters there, on all ranks."""

import threading
from types import ModuleType
from typing import Any

from . import calls, hooks, ring

_FORWARD = ring.NUMBER["fsdp_forward"]
_here = threading.local()  # `opened`: the outermost forward that is going on in this thread


def attach(module: ModuleType) -> None:
    """Wrap FSDP2's hooks before and after a sharded module's forward; the outermost forward is that of the root."""
    cls = module.FSDPState
    cls._pre_forward = hooks.wrap(cls._pre_forward, hooks.guarded(_before_forward))
    cls._post_forward = hooks.surround(cls._post_forward, hooks.guarded(_is_running_root), _after_forward)


def attach_fsdp1(module: ModuleType) -> None:
    """Wrap FSDP1's own forward; only the outermost of nested wrappers is marked."""
    cls = module.FullyShardedDataParallel
    cls.forward = hooks.surround(cls.forward, _begin_outermost, _after_forward)


def _begin_outermost(frame: Any, _args: Any, _kwargs: Any) -> bool:
    if getattr(_here, "opened", None) is not None:
        return False
    _here.opened = calls.begin(_FORWARD, frame)
    return True


def _before_forward(frame: Any, state: Any, *_: Any, **__: Any) -> None:
    """Mark the beginning of a forward, unless one is open already, or this is a recomputation inside a backward."""
    if state._state_ctx.iter_forward_root is None and state._training_state.name != "PRE_BACKWARD":
        _here.opened = calls.begin(_FORWARD, frame)


def _is_running_root(_frame: Any, args: Any, _kwargs: Any) -> bool:
    return args[0]._state_ctx.iter_forward_root is args[0]


def _after_forward(is_outermost: bool, result: Any, error: BaseException | None) -> None:
    if is_outermost:
        calls.end(getattr(_here, "opened", None), result, error)
        _here.opened = None
