"""With `--profile`: when each part of a step began and how long it took, for a trace of the whole job; on CUDA also as NVTX ranges."""

import os
import sys
import time
from typing import Any

from .. import hooks

IS_ON = os.environ.get("RANKWISE_PROFILE") == "1"
_MOST = 400_000
_AT_ONCE = 512

_kept: list[str] = []
_num_spans = 0
_ranges: dict[str, Any] = {}  # part: the NVTX range that is open


def begin(part: str) -> None:
    """A part that begins now. One that an exception ended, such as the end of the data, ends when the next one begins."""
    end_range(part)
    torch = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_initialized():
            _ranges[part] = torch.cuda.nvtx.range_start(part)
    except Exception as error:  # a torch built without NVTX
        hooks.note_broken("nvtx", error)


def end_range(part: str) -> None:
    if part in _ranges:
        sys.modules["torch"].cuda.nvtx.range_end(_ranges.pop(part))


def add(part: str, ns: int) -> None:
    """A part that has just ended."""
    global _num_spans
    end_range(part)
    _num_spans += 1
    if _num_spans <= _MOST:
        _kept.append(f"{part} {time.time_ns() - ns} {ns}\n")
        if len(_kept) >= _AT_ONCE:
            hooks.guarded(flush)()


def flush() -> None:
    """Hand over what was kept; a forked child's copy of it is its parent's, and so is not written twice."""
    lines, _kept[:] = list(_kept), []
    if not lines or not hooks.is_recording():
        return
    fd = os.open(f"{hooks.live}/trace-{os.getpid()}", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, "".join(lines).encode("ascii"))
    finally:
        os.close(fd)


os.register_at_fork(after_in_child=_kept.clear)
