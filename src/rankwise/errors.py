"""The exception tree; each error holds one Finding.

RankwiseError
├── UsageError        the command line or an argument is wrong
├── StartError        the ranks did not become one job; the same on every rank that could be told
├── WorkerError       a worker that `spawn` started has failed
├── TrainError        the training would have gone wrong, now or silently
└── UnreadableInput   a file or folder that was given cannot be read
"""

from __future__ import annotations

from rankwise.findings import Finding, Place
from rankwise.stages import STAGE_NAMED


class RankwiseError(Exception):
    """Base of all errors rankwise raises on purpose; `cli` prints its finding and exits 2."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.summary)
        self.finding = finding


class UsageError(RankwiseError):
    """The command line or an argument is wrong."""

    def __init__(self, summary: str, *, why: str = "", next: tuple[str, ...] = ()) -> None:
        super().__init__(Finding("RW001", "wrong-usage", "error", True, summary, why=why, next=next))


class UnreadableInput(RankwiseError):
    """A file or folder that was given cannot be read."""

    def __init__(self, summary: str, *, why: str = "", next: tuple[str, ...] = ()) -> None:
        super().__init__(Finding("RW002", "unreadable-input", "error", True, summary, why=why, next=next))


class StartError(RankwiseError):
    """The ranks did not become one job; its text is the whole finding, because a traceback is often all that is seen of it."""

    def __str__(self) -> str:
        finding = self.finding
        stage = STAGE_NAMED.get(finding.stage)
        lines = [f"{finding.code} {finding.summary}"]
        lines += [f"stage  not passed: {stage}"] if stage else []
        lines += [f"where  {_where(place)}" for place in finding.culprits[:_MAX_PLACES]]
        lines += [f"       and {left} more"] if (left := len(finding.culprits) - _MAX_PLACES) > 0 else []
        lines += [f"why    {finding.why}"] if finding.why else []
        lines += [f"next   {step}" for step in finding.next]
        return "\n".join(lines)


class WorkerError(RankwiseError):
    """A worker that `spawn` started has failed; the worker's own traceback comes first."""

    def __init__(self, finding: Finding, traceback: str) -> None:
        super().__init__(finding)
        self.traceback = traceback

    def __str__(self) -> str:
        return f"{self.finding.summary}\n\n{self.traceback.rstrip()}" if self.traceback else self.finding.summary


_MAX_PLACES = 8


def _where(place: Place) -> str:
    parts = [
        f"rank {place.rank}" if place.rank is not None else "rank unknown",
        f"host {place.host}" if place.host else "host unknown",
        f"pid {place.pid}" if place.pid else "",
        str(place) if place.file else "",
    ]
    return ", ".join(part for part in parts if part)


class TrainError(RankwiseError):
    """The training would have gone wrong, now or silently; its text is the whole finding, because it is seen in a traceback."""

    def __str__(self) -> str:
        finding = self.finding
        lines = [f"{finding.code} {finding.summary}"]
        lines += [f"why    {finding.why}"] if finding.why else []
        return "\n".join(lines + [f"next   {step}" for step in finding.next])
