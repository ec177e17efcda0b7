"""Who is to blame when a worker dies, and when to stop trying: pure rules."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

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
    stopped: bool = False  # we ended it, because it had been stopped
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
        """The model's own code did this: no other process can make a worker exit. Running out of memory counts as well, though
        in rare cases another process ran out."""
        left = self.exit_code is not None and self.exit_code >= 0 and not self.stopped
        return left or self.own_doing or self.out_of_memory

    @property
    def is_kill(self) -> bool:
        """By SIGKILL, which any process may send; or in an unknown way, which proves as little."""
        return self.exit_code in (None, -signal.SIGKILL) and not self.stopped  # then the signal was ours


def is_quarantined(strikes: int, hits: int, death: Death, others: int = 0) -> bool:
    """An input is quarantined after two proven deaths. Deaths that another process may have caused count less, because bad luck repeats.
    They count even less where workers lately died of signals without this input (`others`): then another process does send signals."""
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


_SOON_S = 1.0  # a kill that matches no worker within this time, or twice that, was another process's


class OomWatch:
    """Each kill is taken for one worker's at most."""

    def __init__(self, now: float, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc, self._cgroups = proc, cgroups
        self._ours = self._count_of_group() or 0
        self._machines = count = self._count_of_machine()
        self._noted = now, count

    def note(self, now: float) -> None:
        """To be called some times a second."""
        noted, count = self._noted
        if now - noted >= _SOON_S:
            self._machines = max(self._machines, count)
            self._noted = now, self._count_of_machine()

    def look(self, now: float) -> str:
        """A worker was killed. "certain" where a process of our own control group was ended for want of memory; "perhaps" where it was
        one of the machine; "" where none was, or another worker was found to be it."""
        self.note(now)
        ours, machines = self._count_of_group(), self._count_of_machine()
        if ours is not None and ours > self._ours:
            self._ours += 1
            self._machines = min(machines, self._machines + 1)
            return "certain"
        if machines > self._machines:
            self._machines += 1
            return "perhaps"
        return ""

    def _count_of_group(self) -> int | None:
        """Of version 2, then 1. Inside a container the group often is the root of what can be seen."""
        for line in _read(self._proc / "self/cgroup").splitlines():
            _, controllers, path = [*line.split(":", 2), "", ""][:3]
            folder, name = (self._cgroups, "memory.events") if not controllers else (self._cgroups / "memory", "memory.oom_control")
            if not controllers or "memory" in controllers.split(","):
                counts = [_oom_kills(_read(place / name)) for place in (folder / path.lstrip("/"), folder)]
                if found := [count for count in counts if count is not None]:
                    return found[0]
        return None

    def _count_of_machine(self) -> int:
        return _oom_kills(_read(self._proc / "vmstat")) or 0


def _oom_kills(text: str) -> int | None:
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), None)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
