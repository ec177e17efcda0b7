"""With `--profile`: when each part of a step began and how long it took, for a trace of the whole job."""

import os
import time

from .. import hooks

IS_ON = os.environ.get("RANKWISE_PROFILE") == "1"
_MOST = 400_000
_AT_ONCE = 512

_kept: list[str] = []
_num_spans = 0


def add(part: str, ns: int) -> None:
    """A part that has just ended."""
    global _num_spans
    _num_spans += 1
    if _num_spans <= _MOST:
        _kept.append(f"{part} {time.time_ns() - ns} {ns}\n")
        if len(_kept) >= _AT_ONCE:
            flush()


def flush() -> None:
    """Hand over what was kept; a forked child's copy of it is its parent's, and so is not written twice."""
    lines, _kept[:] = list(_kept), []
    if not lines or not hooks.is_aboard():
        return
    fd = os.open(f"{hooks.live}/trace-{os.getpid()}", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, "".join(lines).encode("ascii"))
    finally:
        os.close(fd)


os.register_at_fork(after_in_child=_kept.clear)
