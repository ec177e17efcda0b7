"""Where this rank's time goes: seconds waiting for data, in forward, backward, the optimizer, its own collectives and in saving.

With `--profile` also spans: when each part began and how long it took, for a trace of the whole job; on CUDA also as NVTX ranges.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from .. import hooks, process
from . import record, tcp_info

HAS_SPANS = os.environ.get("RANKWISE_PROFILE") == "1"
_MOST_SPANS, _SPANS_AT_ONCE = 400_000, 512
_EVERY_NS = 1_000_000_000
_PARTS = ("data", "forward", "backward", "optimizer", "collective", "save")

_spent = dict.fromkeys(_PARTS, 0)
_steps = 0
_since_ns = 0
_opened_ns = 0
_spans: list[str] = []
_num_spans = 0
_ranges: dict[str, Any] = {}  # part: the NVTX range that is open


def add(part: str, ns: int) -> None:
    _spent[part] += ns
    if HAS_SPANS:
        _add_span(part, ns)


def timed(part: str, end: Callable[..., int]) -> Callable[..., None]:
    """The given `end` for `hooks.surround`; the nanoseconds that it returns are added to the part."""
    return lambda opened, result, error: add(part, end(opened, result, error))


def begin(part: str) -> int:
    """The time at which a part begins, to be passed to its end."""
    if HAS_SPANS:
        begin_span(part)
    return time.perf_counter_ns()


def optimizer_begins() -> None:
    global _opened_ns
    _opened_ns = begin("optimizer")


def optimizer_ends() -> None:
    global _steps, _since_ns
    now = time.perf_counter_ns()
    add("optimizer", now - _opened_ns)
    _steps += 1
    if not _since_ns:  # the first step holds what happens only once: start counting after it
        _restart(now)
    elif now - _since_ns > _EVERY_NS:
        _flush(now)


def _restart(now: int) -> None:
    global _steps, _since_ns
    _since_ns, _steps = now, 0
    for part in _PARTS:
        _spent[part] = 0


@record.budgeted
def _flush(now: int) -> None:
    global _since_ns
    parts: dict[str, Any] = {part: round(ns / 1e6, 3) for part, ns in _spent.items()}
    tcp_info.look()
    record.write("times", steps=_steps, wall=round((now - _since_ns) / 1e6, 3), audit=round(record.spent_ns() / 1e6, 3), **parts)
    _restart(now)


def at_end() -> None:
    if _since_ns and _steps:
        _flush(time.perf_counter_ns())


def begin_span(part: str) -> None:
    """A span begins now. A span that an exception ended (such as the end of the data) is closed when the next one begins."""
    _end_range(part)
    torch = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_initialized():
            _ranges[part] = torch.cuda.nvtx.range_start(part)
    except Exception as error:  # a torch built without NVTX
        hooks.note_broken("nvtx", error)


def _end_range(part: str) -> None:
    if part in _ranges:
        sys.modules["torch"].cuda.nvtx.range_end(_ranges.pop(part))


def _add_span(part: str, ns: int) -> None:
    global _num_spans
    _end_range(part)
    _num_spans += 1
    if _num_spans <= _MOST_SPANS:
        _spans.append(f"{part} {time.time_ns() - ns} {ns}\n")
        if len(_spans) >= _SPANS_AT_ONCE:
            hooks.guarded(flush_spans)()


def flush_spans() -> None:
    """Hand over what was kept; a forked child's copy of it is its parent's, and so is not written twice."""
    lines, _spans[:] = list(_spans), []
    if not lines or not process.is_recording():
        return
    fd = os.open(f"{process.live}/trace-{os.getpid()}", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, "".join(lines).encode("ascii"))
    finally:
        os.close(fd)


os.register_at_fork(after_in_child=_spans.clear)
