"""Marks each forward of a sharded model: FSDP gathers its parameters there, on all ranks."""

import functools
import threading
from types import ModuleType
from typing import Any

from . import calls, hooks, ring

_here = threading.local()  # `opened`: the forward that is going on in this thread


def attach(module: ModuleType) -> None:
    """FSDP2: the state of a `fully_shard`ed module has a hook before and after its forward; the outermost one is the root's."""
    cls = module.FSDPState
    before, after = cls._pre_forward, cls._post_forward
    number = ring.NUMBER["fsdp_forward"]

    @functools.wraps(before)
    def pre_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if hooks.guarded(_is_root)(self):
            _here.opened = calls.begin_if_open(number)
        try:
            return before(self, *args, **kwargs)
        except BaseException as error:
            hooks.drop_wrapper_frame(error)
            raise

    @functools.wraps(after)
    def post_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_root = hooks.guarded(_is_running_root)(self)
        try:
            return after(self, *args, **kwargs)
        except BaseException as error:
            hooks.drop_wrapper_frame(error)
            raise
        finally:
            if is_root:
                calls.end(getattr(_here, "opened", None))
                _here.opened = None

    cls._pre_forward, cls._post_forward = pre_forward, post_forward


def attach_fsdp1(module: ModuleType) -> None:
    """FSDP1: the wrapper's own forward; wrappers within wrappers belong to the outermost."""
    cls = module.FullyShardedDataParallel
    original = cls.forward
    number = ring.NUMBER["fsdp_forward"]

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(_here, "opened", None) is not None:
            return original(self, *args, **kwargs)
        _here.opened = opened = calls.begin_if_open(number)
        try:
            output = original(self, *args, **kwargs)
        except BaseException as error:
            calls.end(opened, True)
            hooks.drop_wrapper_frame(error)
            raise
        finally:
            _here.opened = None
        calls.end(opened)
        return output

    cls.forward = forward


def _is_root(state: Any) -> bool:
    """No forward is going on, and this is not the recomputation within a backward."""
    return state._state_ctx.iter_forward_root is None and state._training_state.name != "PRE_BACKWARD"


def _is_running_root(state: Any) -> bool:
    return state._state_ctx.iter_forward_root is state
