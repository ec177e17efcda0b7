"""Notes the files this rank writes: `torch.save`, and files that the user's code opens for writing."""

import builtins
import functools
import io
import os
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .. import hooks, sites
from . import record, times

_MOST = 300
_IGNORED = ("/dev/", "/proc/", "/sys/", "/run/")

_num_written = 0
_is_watching_open = False
_in_save = False


def attach(module: ModuleType) -> None:
    """After `torch.serialization`."""
    module.save = _noted_save(module.save)  # type: ignore[attr-defined]


def _noted_save(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        global _in_save
        target = args[1] if len(args) > 1 else kwargs.get("f")
        began, _in_save = times.begin("save"), True
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            hooks.drop_wrapper_frame(error)
            raise
        finally:
            _in_save = False
            times.add("save", time.perf_counter_ns() - began)
        if isinstance(target, (str, os.PathLike)):
            _note(target, "torch.save", sys._getframe(1))
        return result

    return save


def watch_open() -> None:
    """In a process that has joined a job: note files that are opened for writing.

    An audit hook of Python would be called for every `id()` too, and optimizers call that for each parameter at each step.
    """
    global _is_watching_open
    if not _is_watching_open and builtins.open is io.open:
        _is_watching_open = True
        builtins.open = io.open = hooks.wrap(io.open, after=_note_open)
        io.open.__module__ = "builtins"  # where pickle finds it


def _note_open(frame: Any, _: Any, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> None:
    if mode[:1] in "wxa" and not _in_save and _num_written < _MOST:
        _note(file, "open", frame)


@record.budgeted
def _note(path: Any, how: str, frame: Any) -> None:
    global _num_written
    if not isinstance(path, (str, os.PathLike)) or not hooks.is_recording() or (how == "open" and not sites.is_called_by_user(frame)):
        return
    full = os.path.abspath(os.fsdecode(path))
    if full.startswith(_IGNORED) or full.startswith(hooks.live):
        return
    _num_written += 1
    if _num_written <= _MOST:
        record.write("wrote", path=full, how=how, site=sites.number_of_caller(frame))
