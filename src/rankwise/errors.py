"""The exception tree; each error holds one Finding.

RankwiseError
├── UsageError        the command line or an argument is wrong
├── StartError        the ranks did not become one job; the same on every rank that could be told
├── WorkerError       a worker that `spawn` started has failed
├── TrainError        the training would have gone wrong, now or silently
└── UnreadableInput   a file or folder that was given cannot be read
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

from rankwise.findings import Finding, Place
from rankwise.stages import STAGE_NAMED


class RankwiseError(Exception):
    """Base of all errors rankwise raises on purpose. Its text is the whole finding, because users often see only a traceback or a log line;
    `cli` prints the finding instead, and exits 2."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.summary)
        self.finding = finding

    def __str__(self) -> str:
        return whole_text(self.finding)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the error with all attributes, whatever a subclass's `__init__` takes: pools and `spawn` send errors between processes."""
        return _made_again, (type(self), self.args, self.__dict__)


def _made_again(kind: type[RankwiseError], args: tuple[Any, ...], state: dict[str, Any]) -> RankwiseError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class UsageError(RankwiseError):
    """The command line or an argument is wrong."""

    def __init__(self, summary: str, *, why: str = "", next: tuple[str, ...] = ()) -> None:
        super().__init__(Finding("RW001", "wrong-usage", "error", True, summary, why=why, next=next))


class UnreadableInput(RankwiseError):
    """A file or folder that was given cannot be read."""

    def __init__(self, summary: str, *, why: str = "", next: tuple[str, ...] = ()) -> None:
        super().__init__(Finding("RW002", "unreadable-input", "error", True, summary, why=why, next=next))


class StartError(RankwiseError):
    """The ranks did not become one job; its text says where as well."""

    def __str__(self) -> str:
        finding = self.finding
        stage = STAGE_NAMED.get(finding.stage)
        lines = [f"stage  not passed: {stage}"] if stage else []
        lines += [f"where  {_where(place)}" for place in finding.culprits[:_MAX_PLACES]]
        lines += [f"       and {left} more"] if (left := len(finding.culprits) - _MAX_PLACES) > 0 else []
        return whole_text(finding, lines)


class TrainError(RankwiseError):
    """The training would have gone wrong, now or silently."""


class WorkerError(RankwiseError):
    """A worker that `spawn` started has failed; the worker's own traceback stands below the finding."""

    def __init__(self, finding: Finding, traceback: str) -> None:
        super().__init__(finding)
        self.traceback = traceback

    def __str__(self) -> str:
        return f"{super().__str__()}\n\n{self.traceback.rstrip()}" if self.traceback else super().__str__()


# The words of allocators on several systems, and of CUDA's libraries.
_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether memory ran out: Python's MemoryError, the kernel's ENOMEM, or an error of torch's allocators (on the CPU a RuntimeError)."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in text_of_error(error) for words in _NO_MEMORY)
    )


def text_of_error(error: BaseException) -> str:
    """The error's text; its type where `str()` of it raises."""
    try:
        return str(error)
    except BaseException:
        return type(error).__name__


def headline(traceback: str) -> str:
    """The line of a traceback that says what was raised; the rest of a finding, and notes, may follow it."""
    own = [line.removeprefix("  | ") for line in traceback.splitlines()]  # an exception group indents its traceback
    lines = [line for line in own if line and not line.startswith(_BELOW)]
    return lines[-1] if lines else ""


_MAX_PLACES = 8
_BELOW = (" ", "stage  ", "where  ", "why    ", "next   ")  # how the lines below a finding's first one begin


def whole_text(finding: Finding, between: Sequence[str] = ()) -> str:
    """A finding as the text of an exception: the summary, the lines of `between`, then why and next."""
    return "\n".join([f"{finding.code} {finding.summary}", *between, *_rest(finding)])


def _rest(finding: Finding) -> list[str]:
    """The lines below the summary; all are indented, so that only an exception's own line begins at the left."""
    why = ["why    " + finding.why.replace("\n", "\n       ")] if finding.why else []
    return [*why, *(f"next   {step}" for step in finding.next)]


def _where(place: Place) -> str:
    parts = [
        f"rank {place.rank}" if place.rank is not None else "rank unknown",
        f"host {place.host}" if place.host else "host unknown",
        f"pid {place.pid}" if place.pid else "",
        str(place) if place.file else "",
    ]
    return ", ".join(part for part in parts if part)
