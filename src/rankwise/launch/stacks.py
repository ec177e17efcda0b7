"""Looks at a process from outside: py-spy where ptrace is allowed, faulthandler through a signal where it is not, or takes too long."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections import Counter
from pathlib import Path

from rankwise.evidence.records import Frame, Thread
from rankwise.launch.process_table import catches, cwd_of
from rankwise.pyspy import NoStack, find_py_spy, read_threads

_STACK_SIGNAL = signal.SIGRTMAX - 2  # the probe's choice, see probe/exits.py
_FAULT_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
_PY_SPY_S = 3.0  # for one process: with CUDA loaded py-spy may take half a minute
_PATIENCE_S = 2.0  # for all processes together: stacks that come later are returned by the next look
_AT_ONCE = 8
_STILL_S = 0.05
_MOST_RUNNING = 3


class StackReader:
    """Reads Python stacks of other processes in threads of its own; remembers where py-spy was refused or too slow, to ask it no more."""

    def __init__(self, live: Path) -> None:
        self._live = live
        self.refused = "" if find_py_spy() else "py-spy is not installed"
        self._slots = threading.Semaphore(_AT_ONCE)
        self._changed = threading.Condition()
        self._reading: set[int] = set()
        self._found: dict[int, tuple[Thread, ...]] = {}
        self._failure: Exception | None = None  # what a thread raised; `read` raises it again
        self._slow: set[int] = set()
        self._asked_running: Counter[int] = Counter()

    @property
    def has_news(self) -> bool:
        """Whether stacks came after `read` had returned, and no more are on their way."""
        return bool(self._found) and not self._reading

    def read(self, pids: list[int]) -> dict[int, tuple[Thread, ...]]:
        """The stacks of these processes that are there by now, and the ones that came late the last time."""
        with self._changed:
            for pid in pids:
                if pid not in self._reading:
                    self._reading.add(pid)
                    threading.Thread(target=self._read_one, args=(pid,), name=f"stack of {pid}", daemon=True).start()
            self._changed.wait_for(lambda: not self._reading, _PATIENCE_S)
            found, self._found = self._found, {}
            failure, self._failure = self._failure, None
        if failure is not None and not found:
            raise failure
        return found

    def peek(self, pid: int) -> tuple[Thread, ...]:
        """The stacks of a rank that is running; only py-spy is asked, which does not disturb it."""
        return () if pid in self._slow else self._with_py_spy(pid)

    def _read_one(self, pid: int) -> None:
        threads: tuple[Thread, ...] = ()
        try:
            with self._slots:
                threads = self._threads_of(pid)
        except OSError:  # the process is gone, or we have no descriptor left
            pass
        except Exception as error:
            self._failure = error
        finally:
            with self._changed:
                if threads:
                    self._found[pid] = threads
                self._reading.discard(pid)
                self._changed.notify_all()

    def _threads_of(self, pid: int) -> tuple[Thread, ...]:
        ways = [self._with_py_spy, self._with_faulthandler]
        for way in reversed(ways) if self.refused or pid in self._slow else ways:
            if threads := way(pid):
                return threads
        return ()

    def _with_py_spy(self, pid: int) -> tuple[Thread, ...]:
        if self.refused:
            return ()
        try:
            return tuple(_thread(entry, pid) for entry in read_threads(pid, _PY_SPY_S))
        except NoStack as reason:
            if reason.is_slow:
                self._slow.add(pid)
            if reason.is_refused:
                self.refused = "ptrace is refused here, so stacks come from faulthandler only"
            return ()
        except (ValueError, KeyError, TypeError):  # another version of py-spy may write other JSON
            return ()

    def _with_faulthandler(self, pid: int) -> tuple[Thread, ...]:
        """Ask the probe's faulthandler with a signal, only where the probe has registered it: elsewhere the signal would kill.

        On Python 3.11 faulthandler crashes the process once in some thousand times if a thread runs Python code meanwhile (half-made
        frames). So only processes that stand still are asked, and a running one a few times where py-spy is refused.
        """
        path = self._live / f"t-{pid}"
        if not catches(pid, _STACK_SIGNAL):  # the process may have called exec since, and the signal would kill it
            return ()
        if not _stands_still(pid):
            self._asked_running[pid] += 1
            if not self.refused or self._asked_running[pid] > _MOST_RUNNING:
                return ()
        try:
            before = path.stat().st_size
            os.kill(pid, _STACK_SIGNAL)
        except OSError:
            return ()
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            text = path.read_bytes()[before:].decode(errors="replace")
            if "most recent call first" in text and text.endswith("\n"):
                return parse_faulthandler(text, cwd_of(pid))
            time.sleep(0.02)
        return ()


def parse_faulthandler(text: str, cwd: str) -> tuple[Thread, ...]:
    """Threads from faulthandler's text; the crashing or current thread counts as the main one."""
    threads: list[Thread] = []
    header, frames = "", []
    for line in [*text.splitlines(), "Thread end"]:
        match = _FAULT_FRAME.match(line)
        if match:
            frames.append(Frame(_absolute(match[1], cwd), int(match[2]), match[3]))
        elif line.startswith(("Thread", "Current thread")):
            if header and frames:
                threads.append(Thread(header.split(" (")[0], tuple(frames), is_main=header.startswith("Current"), is_active=False))
            header, frames = line, []
    return tuple(threads)


def _thread(entry: dict[str, object], pid: int) -> Thread:
    cwd = cwd_of(pid)
    frames = tuple(
        # py-spy gives `Trainer.fit`, tracebacks give `fit`: one spelling for both.
        Frame(_absolute(str(frame["filename"]), cwd), int(frame["line"] or 0), str(frame["name"]).rpartition(".")[2])
        for frame in entry["frames"]  # type: ignore[attr-defined]
    )
    return Thread(
        name=str(entry.get("thread_name") or ""),
        frames=frames,
        is_main=entry.get("os_thread_id") == pid,
        owns_gil=bool(entry.get("owns_gil")),
        is_active=bool(entry.get("active")),
    )


def _absolute(file: str, cwd: str) -> str:
    return file if file.startswith(("/", "<")) or not cwd else os.path.normpath(os.path.join(cwd, file))


def _stands_still(pid: int) -> bool:
    """Whether all threads have slept for a moment. gloo's threads wake up now and then, for too short a time to count."""
    before = _ticks(pid)
    time.sleep(_STILL_S)
    return before is not None and _ticks(pid) == before


def _ticks(pid: int) -> int | None:
    """The CPU time of all threads together; None where one of them is on a processor, or waits for one."""
    total = 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            state, *numbers = Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()
            if state == "R":
                return None
            total += int(numbers[10]) + int(numbers[11])
    except (OSError, ValueError, IndexError):
        return None
    return total
