"""Starts the process that workers are forked from, and asks it for workers."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from typing import Any

from rankwise.pool.faults import Death
from rankwise.pool.keeping import ENVIRONMENT
from rankwise.pool.segments import Segment
from rankwise.pool.status import SIZE, StatusPage
from rankwise.pool.wire import Receiver, pair, send

# Read when torch, MKL, OpenBLAS or numexpr are loaded, so they are set before that.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@dataclass(frozen=True)
class Seat:
    """What a worker is given: its device, its share of the cores, and the cores themselves where it is pinned."""

    device: str
    threads: int
    cpus: tuple[int, ...] = ()

    @property
    def env(self) -> dict[str, str]:
        shown = self.device.split(":")[1] if ":" in self.device else ""
        threads = {name: str(self.threads) for name in _THREAD_VARIABLES}
        return {**threads, "CUDA_VISIBLE_DEVICES": shown}


class Edge:
    """Our end of one worker: its socket, its status page, and the notes it leaves if it crashes."""

    def __init__(self, number: int, seat: Seat) -> None:
        self.number, self.seat = number, seat
        self.sock, self._theirs = pair()
        self.send = self.sock.send  # looked up once
        self.receiver = Receiver(self.sock)
        self.page = StatusPage(Segment.create(SIZE, "rankwise-status"))
        self.crash = os.memfd_create("rankwise-crash", os.MFD_CLOEXEC)
        self._life_line, self._life = os.pipe2(os.O_CLOEXEC)  # when our end is closed, by whatever, the kernel ends the worker
        self.pid: int | None = None  # until it is born: 0 would be the whole process group to whoever sends a signal there
        self.pidfd = -1
        self.known_segments = 0  # of the arena, that the worker has been given
        self.segments: list[Segment] = []  # of its outputs
        self.is_closed = False
        self.is_gone = False  # its process has ended, or is about to
        self.is_orphan = False  # the process it was forked from is gone, and with it whoever would tell how this one ends
        self.is_lost = False  # its socket is closed
        self.has_answered = False
        self.is_armed = False  # the dispatcher's thread waits for its packets
        self.reading = threading.Lock()  # held by the thread that reads its packets
        self.reader: Any = None
        self.verdict: Death | None = None  # why we ended it ourselves

    @property
    def fds(self) -> tuple[int, ...]:
        return (self._theirs.fileno(), self.page.segment.fd, self.crash, self._life_line)

    def given_away(self) -> None:
        self._theirs.close()
        os.close(self._life_line)
        self._life_line = -1

    def born(self, pid: int) -> None:
        if self.pid:
            return
        self.pid = pid
        try:
            self.pidfd = os.pidfd_open(pid)
        except OSError:  # dead already; its end will be reported
            self.pidfd = -1

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> bool:
        """To this very process, or to nobody; never to another that has its number by now. Whether it was there."""
        if self.pidfd < 0:
            return False
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except OSError:
            return False
        return True

    def await_end(self, seconds: float) -> None:
        if self.pidfd >= 0:
            select.select([self.pidfd], [], [], seconds)

    def add_segment(self, size: int) -> None:
        self.segments.append(Segment(self.receiver.fds.pop(0), size))

    def death(self, exit_code: int | None, out_of_memory: bool = False, is_guess: bool = False) -> Death:
        if self.verdict is not None:
            return replace(self.verdict, exit_code=exit_code)
        return Death(exit_code, out_of_memory, is_guess, own_doing=self.page.is_own_doing, stack=self.crash_notes())

    def crash_notes(self) -> str:
        """What faulthandler wrote when the worker crashed."""
        try:
            return os.pread(self.crash, 20_000, 0).decode(errors="replace")
        except OSError:
            return ""

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self.reader = None  # it knows us as well; a mapping keeps its file open until nobody does
        self.sock.close()
        self._theirs.close()
        self.receiver.close()
        self.page.segment.close()
        for segment in self.segments:
            segment.close()
        for fd in (self.crash, self._life, self._life_line, self.pidfd):
            if fd >= 0:
                os.close(fd)


class Crew:
    """The process with torch in it."""

    def __init__(self, threads: int) -> None:
        self.control, theirs = pair()
        self.receiver = Receiver(self.control)
        self.is_ready = False
        self.complaint = ""  # why it could not get ready
        env = {**ENVIRONMENT, **os.environ, **{name: str(threads) for name in _THREAD_VARIABLES}}
        self.process = subprocess.Popen(
            [sys.executable, *_interpreter_flags(), "-m", "rankwise.pool.child.zygote", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            env=env,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the user's program, which then closes the pool
        )
        theirs.close()

    def ask_for(self, edge: Edge, soft_limit: int, seed: int) -> None:
        orders: dict[str, Any] = {
            "number": edge.number,
            "env": edge.seat.env,
            "cpus": list(edge.seat.cpus),
            "threads": edge.seat.threads,
            "soft_limit": soft_limit,
            "seed": seed,
            "title": f"rankwise-w{edge.number}",
        }
        send(self.control, ("spawn", orders), edge.fds, wait=True)
        edge.given_away()

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
