"""Guards every step of the watcher: an exception in one is noted and reported, and stops nothing but that step."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rankwise.findings import Finding

_MAX_SPOTS = 3
_HEAD = "could not see everything: "


@dataclass
class Guarded:
    """How one step went."""

    has_failed: bool = False


class Faults:
    """What went wrong in the watcher itself: the first message of each step. Tracebacks go to `logs/rankwise.log`."""

    def __init__(self, log: Path | None = None) -> None:
        self._log = log
        self._first: dict[str, str] = {}
        self._say: Callable[[str], None] = lambda text: None

    def tell_to(self, say: Callable[[str], None]) -> None:
        """From now on, give `say` one line for each step that fails for the first time."""
        self._say = say

    @contextlib.contextmanager
    def guard(self, step: str) -> Iterator[Guarded]:
        """`with faults.guard("read the stacks"): …` goes on after the block, whatever was raised in it."""
        guarded = Guarded()
        try:
            yield guarded
        except Exception as error:
            guarded.has_failed = True
            with contextlib.suppress(Exception):  # without memory or a terminal it cannot be told
                self.note(step, error)

    def note(self, step: str, error: Exception) -> None:
        if step in self._first:
            return
        import traceback

        text = " ".join(str(error).split())[:200]
        self._first[step] = f"could not {step} ({type(error).__name__}{': ' + text if text else ''})"
        self.write_log(f"could not {step}\n{''.join(traceback.format_exception(error))}")
        self._say(f"rankwise: {self._first[step]}; the job is not affected")

    def write_log(self, text: str) -> None:
        """Append this to `logs/rankwise.log`."""
        if self._log is None:
            return
        with contextlib.suppress(OSError):
            fd = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8", errors="replace") as file:
                file.write(f"{time.strftime('%H:%M:%S')} {text.rstrip()}\n")

    def spots(self) -> tuple[str, ...]:
        """The steps that failed, in words."""
        return tuple(self._first.values())

    def added_to(self, findings: list[Finding]) -> list[Finding]:
        """The findings with one (RW505) that says what could not be seen. Reads no page of a cause: reading them may be what failed."""
        known = next((finding for finding in findings if finding.code == "RW505"), None)
        spots = [spot for spot in self.spots() if known is None or spot not in known.summary]
        if not spots:
            return findings
        more = f" (and {len(spots) - _MAX_SPOTS} more)" if len(spots) > _MAX_SPOTS else ""
        summary = f"{known.summary}; " if known else _HEAD
        blind = replace(
            known or Finding("RW505", "partly-blind", "info", certain=True, summary="", next=("rankwise explain RW505",)),
            summary=summary + "; ".join(spots[:_MAX_SPOTS]) + more,
            why="rankwise itself failed there and left the job alone; logs/rankwise.log in the run folder has the traceback",
        )
        return [*(finding for finding in findings if finding is not known), blind]
