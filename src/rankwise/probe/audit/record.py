"""Writes what the audit saw to the journal, and keeps the audit within its share of the job's time."""

import functools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from .. import hooks, journal

LEVEL = os.environ.get("RANKWISE_AUDIT", "off")
_ALLOWED_NS = 40_000_000  # CPU time allowed beside the share, so that a job of two seconds is audited too
_SHARE = 0.003  # of the job's time; with what every step costs, the audit stays below one percent
_MAX_LINES = 20_000
_AT_ONCE, _FLUSH_NS = 200, 400_000_000
_OFTEN_BEFORE, _WIDEST, _COARSEST = 256, 256, 20
_ALL_BEFORE = 200  # every step before this one is observed
_PATIENCE_NS = 5_000_000_000  # so long after a change the audit may sample more often again

is_step_observed = True  # whether the hooks look at the current step; otherwise they only count backwards
_coarse = 0  # how many times strides are doubled
_look_began_ns = 0  # CPU time of the thread when it began to look; 0 while it does not
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
    """Whether a tensor may be read at once: reading one on a GPU waits for all that is queued there, and for ever in a job that hangs."""
    return LEVEL == "full" or tensor.device.type == "cpu"


def is_sampled(n: int) -> bool:
    """Whether to look at the n-th step, batch or call: at the first 16, then 8 for each doubling of n, from 256 on 4, at last every 256th.

    Fewer of all of them once the share is used up. All strides are powers of two: a rank that looks less often looks at a subset of what
    the others look at, so there is always something to compare.
    """
    global _look_began_ns
    if LEVEL != "full" and n % _stride(n):
        return False
    if not _look_began_ns:
        _look_began_ns = time.thread_time_ns()  # CPU time, because wall time on a busy machine includes other processes
    return True


def _stride(n: int) -> int:
    return (1 if n < 16 else min(1 << (n.bit_length() - (4 if n < _OFTEN_BEFORE else 3)), _WIDEST)) << _coarse


def choose_step(n: int, others: Sequence[int] = ()) -> None:
    """Decide whether the next step is observed: `n` is the number of steps of the busiest optimizer, `others` those of all."""
    global is_step_observed
    is_step_observed = n < _ALL_BEFORE or n % _stride(n) == 0 or LEVEL == "full"
    for m in others:
        is_step_observed = is_step_observed or m % _stride(m) == 0


def observe_step() -> None:
    """Observe the current step, chosen or not."""
    global is_step_observed
    is_step_observed = True


def write(what: str, /, **facts: Any) -> None:
    """Keep one line; lines go to the journal many at a time, because opening a file costs more than all the rest."""
    global _lines
    _lines += 1
    if _lines > _MAX_LINES:
        return
    if _of_pid[0] != os.getpid():  # a forked child: the lines kept so far are its parent's
        _kept.clear()
        _of_pid[0] = os.getpid()
    _kept.append({"a": what, "t": time.time_ns(), **facts})
    if len(_kept) >= _AT_ONCE or time.monotonic_ns() - _flushed_ns[0] > _FLUSH_NS:
        flush()


def flush() -> None:
    """Write the kept lines to the journal."""
    _flushed_ns[0] = time.monotonic_ns()
    if _kept and _of_pid[0] == os.getpid():
        lines, _kept[:] = list(_kept), []
        journal.write("audit", lines=lines)


def budgeted(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, but it never raises, and its CPU time counts from the moment `is_sampled` returned True."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            hooks.note_broken(f"audit: {function.__name__}", error)
            return None
        finally:
            if _look_began_ns:
                _add_cost()

    return run


def _add_cost() -> None:
    """Once the share is used up, sample half as often after each look; twice as often again when there is room."""
    global _spent_ns, _coarse, _changed_ns, _look_began_ns
    _spent_ns += time.thread_time_ns() - _look_began_ns
    _look_began_ns = 0
    if LEVEL == "full":
        return
    now = time.perf_counter_ns()
    over_ns, share_ns = _spent_ns - _ALLOWED_NS, _SHARE * (now - _began_ns)
    if over_ns > share_ns and _coarse < _COARSEST:
        _coarse, _changed_ns = _coarse + 1, now
    elif over_ns < 0.5 * share_ns and _coarse and now - _changed_ns > _PATIENCE_NS:
        _coarse, _changed_ns = _coarse - 1, now


def spent_ns() -> int:
    return _spent_ns
