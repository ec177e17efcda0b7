"""Marks what DDP and the DataLoader do: the forward or backward a collective belongs to, each rank's model, the batches fetched."""

import functools
import inspect
import re
import sys
import time
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import calls, hooks, journal, ring, sites
from .audit import data, events, record, times, window, written_files

_MAX_PARAMETERS = 4000
_wrapped_backward = False
# Kept beside the wrapper and not on it, because the user may save the whole object.
_parameters: weakref.WeakKeyDictionary[Any, list[tuple[str, int]]] = weakref.WeakKeyDictionary()


def attach(module: ModuleType) -> None:
    cls = module.DistributedDataParallel
    cls.__init__ = hooks.surround(cls.__init__, hooks.guarded(_begin_wrapping), hooks.guarded(_end_wrapping))
    cls.forward = _recorded_forward(cls.forward)


def attach_dataloader(module: ModuleType) -> None:
    """Count batches, so that a loop over data shows as progress; note where each pass over the data begins, and that it came to its end."""
    cls, is_audited = module._BaseDataLoaderIter, record.is_on()
    if is_audited:
        data.attach(module)
    original = cls.__next__
    fetched, ended, began, over = (ring.NUMBER[name] for name in ("next_batch", "end_of_data", "pass_start", "pass_end"))

    @functools.wraps(original)
    def counted(self: Any) -> Any:
        began_ns = times.begin("data") if is_audited else 0
        try:
            batch = original(self)
        except BaseException as error:
            if isinstance(error, StopIteration):
                calls.count(ended)
                calls.note(over, sys._getframe(1), self._num_yielded)
                if is_audited:
                    data.pass_ended(self)
            hooks.drop_wrapper_frame(error)
            raise
        calls.count(fetched)
        if is_audited:
            times.add("data", time.perf_counter_ns() - began_ns)
            data.batch_given(self, batch)
        return batch

    cls.__next__ = counted
    loader = module.DataLoader
    loader.__iter__ = hooks.wrap(loader.__iter__, lambda frame, _: calls.note(began, frame), data.pass_began if is_audited else None)


def _begin_wrapping(frame: Any, args: Any, kwargs: Any) -> tuple[calls.Opened, Any, Any, Any]:
    wrapper, model = args[0], args[1] if len(args) > 1 else kwargs.get("module")
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad][:_MAX_PARAMETERS]
    journal.write(
        "model",
        site=sites.number_of_caller(frame),
        names=[name for name, _ in named],
        shapes=[list(p.shape) for _, p in named],
        dtypes=[str(p.dtype) for _, p in named],
        file=_source_file(type(model)),
        buffers=any(True for _ in model.buffers()),
    )
    return calls.begin(ring.NUMBER["ddp"], frame), wrapper, model, frame


def _end_wrapping(begun: tuple[calls.Opened, Any, Any, Any], _result: None, error: BaseException | None) -> None:
    opened, wrapper, model, frame = begun
    calls.end(opened, None, error)
    if error is None:
        _parameters[wrapper] = [(name, id(p)) for name, p in model.named_parameters() if p.requires_grad]
        if record.is_on():
            events.ddp_built(wrapper, frame)


def _recorded_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    number, is_audited = ring.NUMBER["forward"], record.is_on()
    import torch

    @functools.wraps(original)
    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # keeps torch.compile from tracing the probe
            return original(self, *inputs, **kwargs)
        mode = _mode_of(self, torch.is_grad_enabled())
        if is_audited:
            events.forward(self, inputs, kwargs, mode, sys._getframe(1))
        opened = calls.begin(number, sys._getframe(1), mode)
        if times.HAS_SPANS:
            times.begin_span("forward")
        try:
            output = original(self, *inputs, **kwargs)
        except BaseException as error:
            calls.end(opened, None, error)
            hooks.guarded(_note_unused)(self, error)
            hooks.drop_wrapper_frame(error)
            raise
        took_ns = calls.end(opened)
        if is_audited:
            times.add("forward", took_ns)
        return output

    return forward


def _mode_of(wrapper: Any, is_grad_enabled: bool) -> str | None:
    """How a forward differs from one of plain training: this decides whether a gradient reduction follows it."""
    own = wrapper.__dict__  # attribute access through the module takes several times as long
    is_synced, is_training = own.get("require_backward_grad_sync", True), getattr(own.get("_modules", own).get("module"), "training", True)
    if is_synced and is_grad_enabled and is_training:
        return None
    parts = {"no_sync": not is_synced, "no_grad": not is_grad_enabled, "eval": not is_training}
    return "+".join(name for name, holds in parts.items() if holds)


def _note_unused(wrapper: Any, error: BaseException) -> None:
    """Translate DDP's parameter indices into names, and say which parameters are no longer the wrapped ones."""
    message = str(error)
    if "finished reduction" not in message:
        return
    wrapped = _parameters.get(wrapper, [])
    match = re.search(r"did not receive grad for rank \d+:([\d\s]+)", message)
    indices = [int(i) for i in match[1].split()] if match else []
    now = {name: id(p) for name, p in wrapper.module.named_parameters()}
    journal.write(
        "unused",
        names=[wrapped[i][0] for i in indices if i < len(wrapped)],
        replaced=[name for name, identity in wrapped if now.get(name) != identity],
        added=[name for name in now if name not in dict(wrapped)],
    )


def mark_backward() -> None:
    """Mark each backward from now on, because DDP and FSDP reduce gradients there. Called once the process has joined a job."""
    global _wrapped_backward
    if _wrapped_backward:
        return
    _wrapped_backward = True
    import torch

    original = torch.autograd.backward
    torch.autograd.backward = _audited_backward(original) if record.is_on() else calls.noted(original, "backward")
    if record.is_on():
        written_files.watch_open()


def _audited_backward(original: Callable[..., Any]) -> Callable[..., Any]:
    op = ring.NUMBER["backward"]

    def begin(frame: Any, args: Any, kwargs: Any) -> calls.Opened:
        if record.is_step_observed:
            events.backward_begins(args, kwargs, frame)
        if times.HAS_SPANS:
            times.begin_span("backward")
        return calls.begin(op, frame)

    def end(opened: calls.Opened, _result: Any, error: BaseException | None) -> None:
        times.add("backward", calls.end(opened, None, error))
        if error is not None:
            return
        if record.is_step_observed:
            events.backward_ended(sys._getframe(2))
        else:
            window.count_backward()

    return hooks.surround(original, begin, end)


def _source_file(cls: type) -> str:
    try:
        return inspect.getsourcefile(cls) or ""
    except TypeError:
        return ""
