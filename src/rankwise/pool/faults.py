"""Who is to blame when a worker dies, and when to stop trying: pure rules."""

from __future__ import annotations

import signal
from dataclasses import dataclass

MAX_STRIKES = 2  # workers an input may kill
MAX_HITS = 3  # workers that may die under it by a signal anybody could have sent
MAX_KILLS = 6  # the same for SIGKILL without a sign of memory running out
MAX_BUILDS = 3  # failures of a build that might be passing: the worker died in it, or memory ran out
_BACK_OFF_S = (0.0, 0.5, 2.0)


@dataclass(frozen=True)
class Death:
    """How a worker ended: its exit code (negative for a signal) and what was seen around it."""

    exit_code: int | None
    out_of_memory: bool = False
    is_guess: bool = False  # memory ran out somewhere on the machine, perhaps not for this one
    hung_s: float | None = None  # we ended it, because a task took too long
    stopped: bool = False  # we ended it, because somebody had stopped it
    own_doing: bool = False  # the model's code sent the signal itself, while it ran what it was given last
    is_poisoned: bool = False  # it left, because nothing ran on its card any more
    stack: str = ""

    @property
    def text(self) -> str:
        if self.hung_s is not None:
            return f"was ended because it ran for {self.hung_s:.1f} s"
        if self.is_poisoned:
            return "left after an error of its card, after which nothing runs there in the same process"
        if self.stopped:
            return "was ended because it stood stopped (SIGSTOP)"
        if self.exit_code is None:
            return "ended, and how cannot be told: the process it was forked from had ended before"
        if self.exit_code >= 0:
            return f"left with exit code {self.exit_code}"
        name = signal_name(-self.exit_code)
        if not self.out_of_memory:
            return f"was killed by {name}"
        return f"was killed by {name}, " + ("perhaps because the machine's memory ran out" if self.is_guess else "because memory ran out")

    @property
    def is_proven(self) -> bool:
        """Nobody from outside could have done this; or it would be a strange chance, if memory ran out for another just then."""
        left = self.exit_code is not None and self.exit_code >= 0 and not self.stopped
        return left or self.own_doing or self.out_of_memory

    @property
    def is_kill(self) -> bool:
        """By SIGKILL, which anybody may send; or nobody knows how it ended, which is as little."""
        return self.exit_code in (None, -signal.SIGKILL) and not self.stopped  # then the signal was ours


def is_quarantined(strikes: int, hits: int, death: Death, others: int = 0) -> bool:
    """Two proven ends; for those that somebody outside may have caused, more, because the same bad luck twice does happen, and more
    still where workers have lately died of signals without this input (`others`): then somebody outside does send them."""
    if strikes >= MAX_STRIKES:
        return True
    if death.is_kill or others >= MAX_STRIKES:
        return hits >= MAX_KILLS
    return hits >= MAX_HITS


def back_off_s(failures: int) -> float:
    """How long to wait before a build that failed is tried again."""
    return _BACK_OFF_S[min(failures, len(_BACK_OFF_S) - 1)]


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
