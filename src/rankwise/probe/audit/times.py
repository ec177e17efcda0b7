"""Where this rank's time goes: seconds waiting for data, in forward, backward, the optimizer, its own collectives and in saving."""

import time
from collections.abc import Callable
from typing import Any

from . import links, record, spans

_EVERY_NS = 1_000_000_000
_PARTS = ("data", "forward", "backward", "optimizer", "collective", "save")

_spent = dict.fromkeys(_PARTS, 0)
_steps = 0
_since_ns = 0
_opened_ns = 0


def add(part: str, ns: int) -> None:
    _spent[part] += ns
    if spans.IS_ON:
        spans.add(part, ns)


def timed(part: str, end: Callable[..., int]) -> Callable[..., None]:
    """An `end` for `hooks.surround`, which also counts the nanoseconds that the one given returns."""
    return lambda opened, result, error: add(part, end(opened, result, error))


def begin(part: str) -> int:
    """When a part began, to be given back with the time it took."""
    if spans.IS_ON:
        spans.begin(part)
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
    links.look()
    record.write("times", steps=_steps, wall=round((now - _since_ns) / 1e6, 3), audit=round(record.spent_ns() / 1e6, 3), **parts)
    _restart(now)


def at_end() -> None:
    if _since_ns and _steps:
        _flush(time.perf_counter_ns())
