"""Notes the files this rank writes: `torch.save`, and files that the user's code opens for writing."""

import functools
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
_is_listening = False
_in_save = False
_pid = os.getpid()


def attach(module: ModuleType) -> None:
    """After `torch.serialization`."""
    if not record.is_on():
        return
    module.save = _noted_save(module.save)  # type: ignore[attr-defined]


def _noted_save(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        global _in_save
        target = args[1] if len(args) > 1 else kwargs.get("f")
        began, _in_save = time.perf_counter_ns(), True
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            hooks.step_aside(error)
            raise
        finally:
            _in_save = False
            times.add("save", time.perf_counter_ns() - began)
        if isinstance(target, (str, os.PathLike)):
            _note(os.fspath(target), "torch.save", "w", sys._getframe(1))
        return result

    return save


def listen() -> None:
    """In a process that has joined a job: hear of every file that is opened. Python keeps such a hook for good, so it does little."""
    global _is_listening
    if not _is_listening and record.is_on():
        _is_listening = True
        sys.addaudithook(_on_event)


def _on_event(event: str, args: Any) -> None:
    if event == "open" and not _in_save and isinstance(args[1], str) and args[1][:1] in "wxa":
        _on_open(args)


def _on_open(args: Any) -> None:
    path, mode = args[0], args[1]
    if _num_written >= _MOST or not isinstance(path, (str, os.PathLike)):
        return
    frame = sys._getframe(2)
    if sites.is_called_by_user(frame):
        _note(os.fspath(path), "open", mode, frame)


@record.paid
def _note(path: Any, how: str, mode: str, frame: Any) -> None:
    global _num_written
    if not isinstance(path, str) or os.getpid() != _pid_of_rank():
        return
    full = os.path.abspath(path)
    if full.startswith(_IGNORED) or full.startswith(hooks.live):
        return
    _num_written += 1
    if _num_written <= _MOST:
        record.write("wrote", path=full, how=how, mode=mode[:3], site=sites.number_of_caller(frame))


def _pid_of_rank() -> int:
    return hooks._aboard_pid
