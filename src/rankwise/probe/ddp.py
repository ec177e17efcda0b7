"""Marks what DDP and the DataLoader do: the forward or backward a collective belongs to, each rank's model, the batches fetched."""

import functools
import inspect
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import hooks, journal, ring, sites

_MAX_PARAMETERS = 4000
_wrapped_backward = False


def attach(module: ModuleType) -> None:
    cls = module.DistributedDataParallel
    cls.__init__ = _recorded_init(cls.__init__)
    cls.forward = _recorded_forward(cls.forward)


def attach_dataloader(module: ModuleType) -> None:
    """Count batches; only counted, so that a loop over data shows as progress even where no collective is called."""
    cls = module._BaseDataLoaderIter
    original = cls.__next__
    fetched, ended = ring.NUMBER["next_batch"], ring.NUMBER["end_of_data"]

    @functools.wraps(original)
    def counted(self: Any) -> Any:
        try:
            batch = original(self)
        except StopIteration:
            _mark(ended)
            raise
        _mark(fetched)
        return batch

    cls.__next__ = counted


def _mark(op: int) -> None:
    record = ring.here()
    if record is not None:
        record.mark(op)


def _recorded_init(original: Callable[..., Any]) -> Callable[..., Any]:
    number = ring.NUMBER["ddp"]

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        model = args[0] if args else kwargs.get("module")
        opened = hooks.guarded(_begin)(number, model)
        try:
            original(self, *args, **kwargs)
        finally:
            if opened:
                opened[0].leave(opened[1])
        hooks.guarded(_wrap_backward)()
        hooks.guarded(_remember)(self, model)

    return __init__


def _begin(number: int, model: Any) -> Any:
    frame = sys._getframe(3)
    site = sites.number_of_caller(frame)
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad][:_MAX_PARAMETERS]
    journal.write(
        "model",
        site=site,
        names=[name for name, _ in named],
        shapes=[list(p.shape) for _, p in named],
        dtypes=[str(p.dtype) for _, p in named],
        cls=type(model).__qualname__,
        file=_source_file(type(model)),
        buffers=any(True for _ in model.buffers()),
    )
    record = ring.ring(hooks.live)
    return (record, record.enter(number, frame)) if record else None


def _remember(wrapper: Any, model: Any) -> None:
    names = [(name, id(p)) for name, p in model.named_parameters() if p.requires_grad]
    object.__setattr__(wrapper, "_rankwise_parameters", names)


def _recorded_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    number = ring.NUMBER["forward"]
    import torch

    @functools.wraps(original)
    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # keeps torch.compile from tracing the probe
            return original(self, *inputs, **kwargs)
        record = ring.here()
        n = -1
        if record is not None:
            try:
                n = record.enter(number, sys._getframe(1))
            except Exception as error:
                hooks.note_broken("forward", error)
        try:
            output = original(self, *inputs, **kwargs)
        except BaseException as error:
            if n >= 0:
                record.leave(n, True)  # type: ignore[union-attr]
            if "finished reduction" in str(error):
                hooks.guarded(_note_unused)(self, str(error))
            raise
        if n >= 0:
            record.leave(n)  # type: ignore[union-attr]
        return output

    return forward


def _note_unused(wrapper: Any, message: str) -> None:
    """Translate DDP's parameter indices into names, and say which parameters are no longer the wrapped ones."""
    wrapped = getattr(wrapper, "_rankwise_parameters", [])
    match = re.search(r"did not receive grad for rank \d+:([\d\s]+)", message)
    indices = [int(i) for i in match[1].split()] if match else []
    now = {name: id(p) for name, p in wrapper.module.named_parameters()}
    journal.write(
        "unused",
        names=[wrapped[i][0] for i in indices if i < len(wrapped)],
        replaced=[name for name, identity in wrapped if now.get(name) != identity],
        added=[name for name in now if name not in dict(wrapped)],
    )


def _wrap_backward() -> None:
    """Once there is a DDP model: mark each backward, which is where its gradient all-reduces belong."""
    global _wrapped_backward
    if _wrapped_backward:
        return
    _wrapped_backward = True
    import torch

    number = ring.NUMBER["backward"]
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        record = ring.here()
        if record is None or torch.compiler.is_compiling():
            return original(*args, **kwargs)
        n = -1
        try:
            n = record.enter(number, sys._getframe(1))
        except Exception as error:
            hooks.note_broken("backward", error)
        failed = True
        try:
            result = original(*args, **kwargs)
            failed = False
            return result
        finally:
            if n >= 0:
                record.leave(n, failed)

    torch.autograd.backward = backward


def _source_file(cls: type) -> str:
    try:
        return inspect.getsourcefile(cls) or ""
    except TypeError:
        return ""
