"""Starts the process that workers are forked from, keeps it alive, and asks it for workers.

Either may be killed at any time, by the kernel for want of memory or by a script of the user's. Then it is tried again, with growing
pauses, for as long as the pool lives; tasks wait meanwhile, or meet their deadline.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from rankwise.pool.schedule.state import THREAD_VARIABLES, Seat
from rankwise.pool.transport.connection import Receiver, WorkerHandle, pair, send
from rankwise.pool.workers.child.allocator import ENVIRONMENT

log = logging.getLogger("rankwise.pool")
_PAUSES_S = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_WELL_AFTER_S = 10.0  # a process that has been ready for so long was started well
_PASSES = ("MemoryError", "Cannot allocate memory")  # in what it complains of: that may be otherwise the next time


def pause_s(failures: int) -> float:
    """Before it is tried again, after so many times in a row."""
    return _PAUSES_S[min(failures, len(_PAUSES_S)) - 1] if failures else 0.0


class ForkServer:
    """The process with torch in it."""

    def __init__(self, threads: int) -> None:
        self.control, theirs = pair()
        self.receiver = Receiver(self.control)
        self.is_ready = False
        self.complaint = ""  # why it could not get ready
        env = {**ENVIRONMENT, **os.environ, **{name: str(threads) for name in THREAD_VARIABLES}}
        self.process = subprocess.Popen(
            [sys.executable, *_interpreter_flags(), "-m", "rankwise.pool.workers.child.fork_server", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            env=env,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the user's program, which then closes the pool
        )
        theirs.close()

    def ask_for(self, handle: WorkerHandle, soft_limit: int, seed: int) -> None:
        orders: dict[str, Any] = {
            "number": handle.number,
            "env": handle.seat.env,
            "cpus": list(handle.seat.cpus),
            "threads": handle.seat.threads,
            "soft_limit": soft_limit,
            "seed": seed,
            "title": f"rankwise-w{handle.number}",
        }
        send(self.control, ("spawn", orders), handle.fds, wait=True)
        handle.given_away()

    def close(self) -> None:
        """Closing the socket ends the process and all workers below it."""
        try:
            self.control.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.control.close()
        self.receiver.close()
        if not self.is_ready:  # it is busy importing, and would look at the socket only when that is over
            self.process.kill()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _interpreter_flags() -> list[str]:
    return list(subprocess._args_from_interpreter_flags())  # type: ignore[attr-defined]


class Starter:
    """The pool's lock is held in all of this."""

    def __init__(self, seats: list[Seat], on_fork_server: Callable[[ForkServer], None], start_worker: Callable[[Seat], None]) -> None:
        self._threads, self._on_fork_server, self._start_worker = seats[0].threads, on_fork_server, start_worker
        self._vacant: list[tuple[float, Seat]] = [(0.0, seat) for seat in seats]  # and not before when they are taken
        self._failures = 0  # of the process, in a row
        self._start_at = 0.0
        self._ready_since: float | None = None
        self._was_ever_ready = False
        self.fork_server: ForkServer | None = None

    def go_on(self, now: float) -> None:
        """What is due."""
        if self.fork_server is None:
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
                self._start_worker(seat)
            except OSError as error:  # no more files, or no memory
                log.warning("a worker could not be made (%s); it is tried again", error)
                self.vacate(seat, now + _PAUSES_S[-3])

    def _has_started(self, now: float) -> bool:
        try:
            self.fork_server = ForkServer(self._threads)
        except OSError as error:
            if not self._failures:  # from the start: the caller is told
                raise
            self._failures += 1
            self._start_at = now + pause_s(self._failures)
            log.warning("the process that workers are forked from could not be started (%s); it is tried again", error)
            return False
        self._on_fork_server(self.fork_server)
        return True

    def vacate(self, seat: Seat, not_before: float = 0.0) -> None:
        self._vacant.append((not_before, seat))

    def ready(self, now: float) -> None:
        assert self.fork_server is not None
        self.fork_server.is_ready = self._was_ever_ready = True
        self._ready_since = now

    def fork_server_died(self, now: float) -> str:
        """It will be started again; or why not, where it is clear that this would end in the same way."""
        fork_server, self.fork_server = self.fork_server, None
        assert fork_server is not None
        code = fork_server.process.wait()
        fork_server.close()
        if self._ready_since is not None and now - self._ready_since > _WELL_AFTER_S:
            self._failures = 0
        self._failures += 1
        self._ready_since = None
        self._start_at = now + pause_s(self._failures)
        may_pass = (
            self._was_ever_ready or any(words in fork_server.complaint for words in _PASSES) or (code < 0 and not fork_server.complaint)
        )
        if not may_pass:
            return fork_server.complaint or f"the process that imports torch ended with code {code}"
        log.warning(
            "the process that workers are forked from ended (%s); it is started again%s",
            code,
            f" in {pause_s(self._failures):g} s" if pause_s(self._failures) else "",
        )
        return ""

    def close(self) -> None:
        if self.fork_server is not None:
            self.fork_server.close()

    def close_after_fork(self) -> None:
        if self.fork_server is not None:
            self.fork_server.control.close()
