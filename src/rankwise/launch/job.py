"""A running job under its guardian: which processes ended, with which code, and how the rest is ended. Does little, as it must not fail."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankwise.launch.faults import Faults
from rankwise.launch.job_output import OutputPump

_PATIENCE_S = 10.0  # for a command that was asked to end
TICK_S = 0.2
END_GRACE_S = 5.0


@dataclass
class RunningJob:
    """The watcher's end of the pipes to the guardian. Closing `control` ends the job, so only `end` does."""

    live: Path  # the folder that probes write to
    output: OutputPump
    guardian: subprocess.Popen[bytes]
    control: int  # a word here ends the job; so does closing it
    status: int  # the guardian's reports
    started_ns: int
    asked: list[int]  # signals we received: they are only noted, because none may end us while we have a job
    faults: Faults
    code: int | None = None  # the command's, once it has ended
    not_started: str = ""  # why there is no command
    is_abandoned: bool = False  # the watcher's thread is stuck, and Python would wait for it at exit
    ended: dict[int, tuple[int, int]] = field(default_factory=dict)  # every process that ended: code, time
    _main_pid: int = 0
    _asked_at: float | None = None
    _is_all_gone: bool = False
    _rest: bytes = b""
    _events: deque[bytes] = field(default_factory=deque)

    def follow(self, timeout_s: float) -> None:
        """Take in what the guardian reports, and pass on what the user asks for."""
        self._read_events(timeout_s)
        self._pass_on_signals()

    def _read_events(self, timeout_s: float) -> None:
        if select.select([self.status], [], [], timeout_s)[0]:
            data = os.read(self.status, 1 << 16)
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._events.extend(lines)
            if not data:  # the guardian is gone
                self._is_all_gone = True
                self.code = 1 if self.code is None else self.code
        while self._events:  # an event leaves the queue only once it was taken
            with contextlib.suppress(ValueError, KeyError, TypeError):
                self._take_event(json.loads(self._events[0]))
            self._events.popleft()

    def _take_event(self, event: dict[str, Any]) -> None:
        if event["event"] == "started":
            self._main_pid = event["pid"]
        elif event["event"] == "not_started":
            self.not_started, self.code = event["error"].split(" ", 1)[-1], 127
        elif event["event"] == "ended":
            self.ended[event["pid"]] = (event["code"], event["t"])
            if event["pid"] == self._main_pid and self.code is None:
                self.code = event["code"] if event["code"] >= 0 else 128 - event["code"]
        elif event["event"] == "all_gone":
            self._is_all_gone = True

    def _pass_on_signals(self) -> None:
        """Send the first signal to the command, which may end in its own way; a second signal, or ten more seconds, ends everything."""
        if not self.asked or not self._main_pid:
            return
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            with contextlib.suppress(OSError):
                os.killpg(self._main_pid, self.asked[0])
        elif self.code is None and (len(self.asked) > 1 or time.monotonic() - self._asked_at > _PATIENCE_S):
            self.code = 128 + self.asked[0]

    def end_all(self, grace_s: float) -> None:
        """End what is left of the job, politely at first, and wait until it is gone."""
        with contextlib.suppress(OSError):
            os.write(self.control, f"{grace_s}\n".encode())
        deadline = time.monotonic() + grace_s + 25
        while time.monotonic() < deadline and not self._is_all_gone and self.guardian.poll() is None:
            self._read_events(TICK_S)

    def end(self) -> None:
        """End what is left of the job, then the guardian. Steps that the watcher has already done are not done again."""
        if not self._is_all_gone:
            with self.faults.guard("end what the command left behind"):
                self.end_all(END_GRACE_S)
        with self.faults.guard("show the last output"):
            self.output.stop()
        with contextlib.suppress(OSError):
            os.close(self.control)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.guardian.wait(timeout=30)
        with contextlib.suppress(OSError):
            os.close(self.status)
        if self.guardian.poll() != 0:
            with self.faults.guard("end what the guardian left behind"):
                _kill_children()
        shutil.rmtree(self.live, ignore_errors=True)


def _kill_children() -> None:
    """Kill adopted processes until none is left, in place of a guardian that is gone."""
    import psutil

    deadline = time.monotonic() + 20
    while (children := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
        for child in children:
            with contextlib.suppress(psutil.Error):
                child.kill()
        psutil.wait_procs(children, timeout=1.0)
