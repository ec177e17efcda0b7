"""Notes the exceptions of DataLoader workers as they reach the rank: a script that catches them and tries again leaves no other trace."""

import re
from types import ModuleType
from typing import Any

from . import hooks, journal, process

_FRAME = re.compile(r'File "([^"]+)", line (\d{1,9}), in (\S+)')
_times: dict[tuple[str, str], int] = {}


def attach(module: ModuleType) -> None:
    cls = module.ExceptionWrapper
    cls.reraise = _Noted(cls.reraise)


class _Noted:
    """Notes a call when the method is looked up, because a wrapper around it would show in the user's traceback."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __get__(self, wrapper: Any, cls: Any = None) -> Any:
        if wrapper is not None and process.is_recording():
            hooks.guarded(_note)(wrapper)
        return self._original.__get__(wrapper, cls)


def _note(wrapper: Any) -> None:
    lines = [line for line in str(wrapper.exc_msg).splitlines() if line.strip()]
    kind, message = wrapper.exc_type.__qualname__, (lines[-1] if lines else "")[:500]
    times = _times[kind, message] = _times.get((kind, message), 0) + 1
    if times > 3 and times & (times - 1):
        return  # after the third only powers of two are written: a script that retries for ever must not fill the disk
    frames = [[file, int(line), function] for file, line, function in _FRAME.findall(str(wrapper.exc_msg))]
    journal.write("worker_raised", type=kind, message=message, times=times, frames=frames[::-1][:40])
