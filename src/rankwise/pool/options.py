"""What a caller may say about one request, or about a stream of them, looked at once."""

from __future__ import annotations

import math
import operator
from numbers import Real
from typing import Any

from rankwise.errors import UsageError


def checked_deadline(deadline_s: Any) -> float | None:
    if deadline_s is None:
        return None
    if not isinstance(deadline_s, Real) or math.isnan(deadline_s):
        raise UsageError(f"deadline_s must be a number of seconds, not {deadline_s!r}", next=("deadline_s=0.5",))
    return float(deadline_s)


def checked_priority(priority: Any) -> int:
    try:
        return operator.index(priority)
    except TypeError:
        raise UsageError(
            f"priority must be a whole number, not {priority!r}", why="tasks with a higher one go first; 0 is usual", next=("priority=1",)
        ) from None


def check_window(window: Any) -> None:
    try:
        is_right = window is None or operator.index(window) >= 1
    except TypeError:
        is_right = False
    if not is_right:
        raise UsageError(f"window must be a whole number of at least 1, not {window!r}", why="it is how many requests may be under way")
