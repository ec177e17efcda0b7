"""The parent's end of one worker: its socket, its status page, its process, and its stack when it hangs."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rankwise.pool.errors import Death
from rankwise.pool.memory.shared_memory import Segment
from rankwise.pool.schedule.state import Seat
from rankwise.pool.transport.messages import SIZE, STACK_SIGNAL, Receiver, StatusPage, pair


class WorkerHandle:
    """Our end of one worker: its socket, its status page, and the notes it leaves if it crashes."""

    def __init__(self, number: int, seat: Seat) -> None:
        self.number, self.seat = number, seat
        self.sock, self._theirs = pair()
        self.send = self.sock.send  # looked up once
        self.receiver = Receiver(self.sock)
        self.page = StatusPage(Segment.create(SIZE, "rankwise-status"))
        self.crash = os.memfd_create("rankwise-crash", os.MFD_CLOEXEC)
        self._life_line, self._life = os.pipe2(os.O_CLOEXEC)  # when our end is closed, by whatever, the kernel ends the worker
        self.pid: int | None = None  # None until it runs: a signal to 0 would reach our whole process group
        self.pidfd = -1
        self.known_segments = 0  # of the arena, that the worker has been given
        self.segments: list[Segment] = []  # of its outputs
        self.is_closed = False
        self.is_gone = False  # its process has ended, or is about to
        self.is_orphan = False  # the process it was forked from is gone, so its exit code will not be reported
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
        """Send a signal to this very process, never to another one that has its number by now. Whether it was there."""
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
        self.reader = None  # it knows our memory; a mapping keeps its file open until no object refers to it
        self.sock.close()
        self._theirs.close()
        self.receiver.close()
        self.page.segment.close()
        for segment in self.segments:
            segment.close()
        for fd in (self.crash, self._life, self._life_line, self.pidfd):
            if fd >= 0:
                os.close(fd)


_OURS = ("rankwise/pool/workers/child/", "runpy")
_TIMEOUT_S = 10.0  # for py-spy, which looks through all a process has mapped; a card's driver maps much
_ANSWER_S, _SETTLE_S = 2.0, 0.05


def stack_of(handle: WorkerHandle) -> str:
    """The Python stack, innermost first, without our own frames; where nothing can be had, why."""
    frames, why_not = _with_py_spy(handle.pid) if handle.pid else ([], "it had not started")
    if not frames:
        frames, silent = _with_faulthandler(handle)
        why_not = f"{why_not}; {silent}"
    if not frames:
        return f"(its stack could not be read: {why_not})"
    lines = [line for line in frames if not any(ours in line for ours in _OURS)] or frames
    if handle.page.awaits_card:
        lines.insert(0, "(the model had returned, and the card was not done with what it had been given)")
    return "\n".join(lines)


def _with_py_spy(pid: int) -> tuple[list[str], str]:
    """Frames, or why there are none."""
    beside = Path(sys.executable).with_name("py-spy")
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if not program:
        return [], "there is no py-spy"
    command = [program, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"py-spy: {error}"
    frames = [line.strip() for line in done.stdout.splitlines() if line.startswith("    ")]
    said = (done.stderr.strip() or "nothing").splitlines()[-1]
    return (frames, "") if frames and not done.returncode else ([], f"py-spy said {said[:200]}")


def _with_faulthandler(handle: WorkerHandle) -> tuple[list[str], str]:
    """The worker's own handler writes to its crash notes, line by line; a stopped worker cannot."""
    before = len(handle.crash_notes())
    if not handle.signal(STACK_SIGNAL):
        return [], "the worker is gone"
    end, notes = time.monotonic() + _ANSWER_S, ""
    while time.monotonic() < end:
        time.sleep(_SETTLE_S)
        last, notes = notes, handle.crash_notes()[before:]
        if notes and notes == last:
            break
    frames = [line.strip() for line in notes.splitlines() if line.startswith("  File ")]
    return frames, "" if frames else "the worker did not answer a signal"
