"""`Finding`: what `check`, `run` and the library all report."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from typing import Any, Literal

from rankwise.thaw import thaw

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True)
class Place:
    """Where a culprit is, in the user's own code; unknown fields are None, never a guess."""

    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    file: str | None = None
    line: int | None = None
    function: str | None = None

    def __str__(self) -> str:
        return where(self.file, self.line, self.function)


@dataclass(frozen=True)
class Wait:
    """An innocent rank and the operation it waits in."""

    rank: int | None = None
    op: str | None = None
    group: str | None = None
    seq: int | None = None
    file: str | None = None
    line: int | None = None
    function: str | None = None

    def __str__(self) -> str:
        return where(self.file, self.line, self.function)


@dataclass(frozen=True)
class Finding:
    """What was found: the fact (summary), where, why and what to do next.

    `deadlock` says that no rank can move again by itself; only such a job is ever stopped. `stage` is the name of the start-up stage that
    was not passed (see `rankwise.stages`), empty once the job has started.
    """

    code: str
    name: str
    severity: Severity
    certain: bool
    summary: str
    culprits: tuple[Place, ...] = ()
    waiting: tuple[Wait, ...] = ()
    why: str = ""
    next: tuple[str, ...] = ()
    deadlock: bool = False
    stage: str = ""

    def with_severity(self, severity: Severity) -> Finding:
        return replace(self, severity=severity)

    def to_dict(self) -> dict[str, Any]:
        """The finding as verdict.json holds it, in the order of the fields."""
        culprits, waiting = [vars(place) for place in self.culprits], [vars(wait) for wait in self.waiting]
        return {**vars(self), "culprits": culprits, "waiting": waiting, "next": list(self.next)}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Finding:
        """A finding from its JSON form; unknown keys are ignored, wrong types raise ValueError."""
        found: Finding = thaw(Finding, data)
        return found


def where(file: str | None, line: int | None, function: str | None) -> str:
    """A place as the user would open it: `train.py:88 train_epoch()`."""
    if not file:
        return "unknown place"
    spot = f"{file}:{line}" if line else file
    return spot if not function or function == "<module>" else f"{spot} {function}()"


def ranks_text(ranks: list[int] | tuple[int, ...] | set[int]) -> str:
    """`rank 3`, `ranks 0-2, 5`: short at any world size."""
    ordered = sorted(set(ranks))
    if not ordered:
        return "no rank"
    runs: list[tuple[int, int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    text = ", ".join(str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}-{b}" for a, b in runs)
    return f"rank {text}" if len(ordered) == 1 else f"ranks {text}"


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; `signal 40` for real-time and unknown signals."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
