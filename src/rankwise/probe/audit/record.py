"""Writes what the audit saw to the journal, and keeps to its share of the job's time."""

import functools
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from .. import hooks, journal

LEVEL = os.environ.get("RANKWISE_AUDIT", "off")
_ALLOWED_NS = 40_000_000  # what may be spent before the share counts: a job of two seconds is looked at too
_SHARE = 0.003  # the rest of the one percent is for what every step costs
_MAX_LINES = 20_000
_AT_ONCE, _FLUSH_NS = 200, 400_000_000
_OFTEN_BEFORE, _WIDEST, _COARSEST = 256, 256, 20
_ALL_BEFORE = 200  # steps of which each is followed
_PATIENCE_NS = 5_000_000_000  # before it is looked more often again

is_awake = True  # whether the hooks look at the current step; in the others they only count backwards
_coarse = 0  # strides are so many times doubled
_look_began_ns = 0  # in CPU time of the thread that looks; 0 while nothing is looked at
_spent_ns = 0
_began_ns = time.perf_counter_ns()
_changed_ns = 0
_lines = 0
_kept: list[dict[str, Any]] = []
_of_pid = [os.getpid()]
_flushed_ns = [0]


def is_on() -> bool:
    return LEVEL != "off"


def may_read(tensor: Any) -> bool:
    """Reading a tensor of a GPU waits for all that is queued there: in a job that hangs, for ever, and not at the user's own line."""
    return LEVEL == "full" or tensor.device.type == "cpu"


def is_sampled(n: int) -> bool:
    """Whether to look at the n-th step, batch or call: the first sixteen, then eight for each doubling, from the 256th on
    four, then every so many.

    Fewer once the share is used up, from the very first on. All strides are powers of two, so that ranks which look less often look at a
    part of what the others look at.
    """
    global _look_began_ns
    if LEVEL != "full" and n % _stride(n):
        return False
    if not _look_began_ns:
        _look_began_ns = time.thread_time_ns()  # CPU time: on a busy machine the clock counts what others do
    return True


def _stride(n: int) -> int:
    return (1 if n < 16 else min(1 << (n.bit_length() - (4 if n < _OFTEN_BEFORE else 3)), _WIDEST)) << _coarse


def follow(n: int, others: Sequence[int] = ()) -> None:
    """Decide whether the hooks look at the next step: `n` is the most steps that an optimizer has made, `others` what the others have."""
    global is_awake
    is_awake = n < _ALL_BEFORE or n % _stride(n) == 0 or LEVEL == "full"
    for m in others:
        is_awake = is_awake or m % _stride(m) == 0


def wake() -> None:
    """Something happened that this step should not pass without a look."""
    global is_awake
    is_awake = True


def write(what: str, /, **facts: Any) -> None:
    """Keep one line; lines go to the journal some at a time, because opening a file costs more than all the rest."""
    global _lines
    _lines += 1
    if _lines > _MAX_LINES:
        return
    if _of_pid[0] != os.getpid():  # a forked worker: what is kept here is its parent's
        _kept.clear()
        _of_pid[0] = os.getpid()
    _kept.append({"a": what, "t": time.time_ns(), **facts})
    if len(_kept) >= _AT_ONCE or time.monotonic_ns() - _flushed_ns[0] > _FLUSH_NS:
        flush()


def flush() -> None:
    """Hand over what was kept."""
    _flushed_ns[0] = time.monotonic_ns()
    if _kept and _of_pid[0] == os.getpid():
        lines, _kept[:] = list(_kept), []
        journal.write("audit", lines=lines)


def paid(function: Callable[..., Any]) -> Callable[..., Any]:
    """A look that may fail unnoticed. What it costs counts from where `is_sampled` said yes; the rest is a fixed, small price."""

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            hooks.note_broken(f"audit: {function.__name__}", error)
            return None
        finally:
            if _look_began_ns:
                _pay()

    return run


def noted_init(original: Callable[..., Any], note: Callable[[Any, Any], None]) -> Callable[..., Any]:
    """A constructor after which `note` gets the new object and the frame it was made from."""

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(self, *args, **kwargs)
        except BaseException as error:
            hooks.step_aside(error)
            raise
        note(self, sys._getframe(1))

    return __init__


def _pay() -> None:
    """Once the share is used up, look half as often after each look; twice as often again when there is room."""
    global _spent_ns, _coarse, _changed_ns, _look_began_ns
    _spent_ns += time.thread_time_ns() - _look_began_ns
    _look_began_ns = 0
    if LEVEL == "full":
        return
    now = time.perf_counter_ns()
    over_ns, share_ns = _spent_ns - _ALLOWED_NS, _SHARE * (now - _began_ns)
    if over_ns > share_ns and _coarse < _COARSEST:
        _coarse, _changed_ns = _coarse + 1, now
        write("throttled", stride=1 << _coarse, spent_ms=_spent_ns / 1e6, elapsed_ms=(now - _began_ns) / 1e6)
    elif over_ns < 0.5 * share_ns and _coarse and now - _changed_ns > _PATIENCE_NS:
        _coarse, _changed_ns = _coarse - 1, now


def spent_ns() -> int:
    return _spent_ns
