"""Keeps the process that workers are forked from alive, and asks it for workers, as soon as both can be had.

Either may be killed at any time, by the kernel for want of memory or by somebody's script. Then it is tried again, with growing pauses,
for as long as the pool lives; tasks wait meanwhile, or meet their deadline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from rankwise.pool.crew import Crew, Seat

log = logging.getLogger("rankwise.pool")
_PAUSES_S = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_WELL_AFTER_S = 10.0  # a process that has been ready for so long was started well
_PASSES = ("MemoryError", "Cannot allocate memory")  # in what it complains of: that may be otherwise the next time


def pause_s(failures: int) -> float:
    """Before it is tried again, after so many times in a row."""
    return _PAUSES_S[min(failures, len(_PAUSES_S)) - 1] if failures else 0.0


class Hiring:
    """The dispatcher's lock is held in all of this."""

    def __init__(self, seats: list[Seat], on_crew: Callable[[Crew], None], hire: Callable[[Seat], None]) -> None:
        self._threads, self._on_crew, self._hire = seats[0].threads, on_crew, hire
        self._vacant: list[tuple[float, Seat]] = [(0.0, seat) for seat in seats]  # and not before when they are taken
        self._failures = 0  # of the process, in a row
        self._start_at = 0.0
        self._ready_since: float | None = None
        self._was_ever_ready = False
        self.crew: Crew | None = None

    def go_on(self, now: float) -> None:
        """What is due."""
        if self.crew is None:
            if now < self._start_at:
                return
            if not self._has_started(now):
                return
        if self._ready_since is not None and now - self._ready_since > _WELL_AFTER_S:
            self._failures = 0
        due = [seat for moment, seat in self._vacant if moment <= now]
        self._vacant = [(moment, seat) for moment, seat in self._vacant if moment > now]
        for seat in due:
            try:
                self._hire(seat)
            except OSError as error:  # no more files, or no memory
                log.warning("a worker could not be made (%s); it is tried again", error)
                self.vacate(seat, now + _PAUSES_S[-3])

    def _has_started(self, now: float) -> bool:
        try:
            self.crew = Crew(self._threads)
        except OSError as error:
            if not self._failures:  # from the start: the caller is told
                raise
            self._failures += 1
            self._start_at = now + pause_s(self._failures)
            log.warning("the process that workers are forked from could not be started (%s); it is tried again", error)
            return False
        self._on_crew(self.crew)
        return True

    def vacate(self, seat: Seat, not_before: float = 0.0) -> None:
        self._vacant.append((not_before, seat))

    def ready(self, now: float) -> None:
        assert self.crew is not None
        self.crew.is_ready = self._was_ever_ready = True
        self._ready_since = now

    def crew_died(self, now: float) -> str:
        """It will be started again; or why not, where it is clear that this would end in the same way."""
        crew, self.crew = self.crew, None
        assert crew is not None
        code = crew.process.wait()
        crew.close()
        if self._ready_since is not None and now - self._ready_since > _WELL_AFTER_S:
            self._failures = 0
        self._failures += 1
        self._ready_since = None
        self._start_at = now + pause_s(self._failures)
        may_pass = self._was_ever_ready or any(words in crew.complaint for words in _PASSES) or (code < 0 and not crew.complaint)
        if not may_pass:
            return crew.complaint or f"the process that imports torch ended with code {code}"
        log.warning(
            "the process that workers are forked from ended (%s); it is started again%s",
            code,
            f" in {pause_s(self._failures):g} s" if pause_s(self._failures) else "",
        )
        return ""

    def close(self) -> None:
        if self.crew is not None:
            self.crew.close()

    def close_after_fork(self) -> None:
        if self.crew is not None:
            self.crew.control.close()
