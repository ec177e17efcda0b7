"""The exception tree; each error holds one Finding.

RankwiseError
├── UsageError        the command line or an argument is wrong
├── TrainError        the training would have gone wrong, now or silently
└── UnreadableInput   a file or folder that was given cannot be read
"""

from __future__ import annotations

from rankwise.findings import Finding


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


class TrainError(RankwiseError):
    """The training would have gone wrong, now or silently; its text is the whole finding, because it is seen in a traceback."""

    def __str__(self) -> str:
        finding = self.finding
        lines = [f"{finding.code} {finding.summary}"]
        lines += [f"why    {finding.why}"] if finding.why else []
        return "\n".join(lines + [f"next   {step}" for step in finding.next])
