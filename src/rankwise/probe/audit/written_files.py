"""Notes the files this rank writes: `torch.save`, and files that the user's code opens for writing."""

import builtins
import io
import os
import time
from types import ModuleType
from typing import Any

from .. import hooks, process, sites
from . import record, times

_MOST = 300
_IGNORED = ("/dev/", "/proc/", "/sys/", "/run/")

_num_written = 0
_is_watching_open = False
_in_save = False


def attach(module: ModuleType) -> None:
    module.save = hooks.surround(module.save, _begin_save, hooks.guarded(_end_save))  # type: ignore[attr-defined]


def _begin_save(frame: Any, args: Any, kwargs: Any) -> tuple[int, Any, Any]:
    global _in_save
    _in_save = True
    return times.begin("save"), args[1] if len(args) > 1 else kwargs.get("f"), frame


def _end_save(begun: tuple[int, Any, Any], _result: None, error: BaseException | None) -> None:
    global _in_save
    _in_save = False
    began_ns, target, frame = begun
    times.add("save", time.perf_counter_ns() - began_ns)
    if error is None:
        _note(target, "torch.save", frame)


def watch_open() -> None:
    """Note files that are opened for writing, once the process has joined a job.

    Wraps `open`: an audit hook (sys.addaudithook) would also be called for every `id()`, one per parameter and step of an optimizer.
    """
    global _is_watching_open
    if not _is_watching_open and builtins.open is io.open:
        _is_watching_open = True
        builtins.open = io.open = hooks.wrap(io.open, after=_note_open)
        io.open.__module__ = "builtins"  # pickle looks it up in this module


def _note_open(frame: Any, _: Any, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> None:
    if mode[:1] in "wxa" and not _in_save and _num_written < _MOST:
        _note(file, "open", frame)


@record.budgeted
def _note(path: Any, how: str, frame: Any) -> None:
    global _num_written
    if not isinstance(path, (str, os.PathLike)) or not process.is_recording() or (how == "open" and not sites.is_called_by_user(frame)):
        return
    full = os.path.abspath(os.fsdecode(path))
    if full.startswith(_IGNORED) or full.startswith(process.live):
        return
    _num_written += 1
    if _num_written <= _MOST:
        record.write("wrote", path=full, how=how, site=sites.number_of_caller(frame))
