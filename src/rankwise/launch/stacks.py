"""Looks at a process from outside: py-spy where ptrace is allowed, faulthandler through a signal where it is not."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rankwise.evidence.records import Frame, Thread

_STACK_SIGNAL = signal.SIGRTMAX - 2  # the probe's choice, see probe/exits.py
_FAULT_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')


class StackReader:
    """Reads Python stacks of other processes; remembers that ptrace was refused, so as not to ask again."""

    def __init__(self, live: Path) -> None:
        self._live = live
        self._py_spy = _find_py_spy()
        self.refused = "" if self._py_spy else "py-spy is not installed"

    def read(self, pids: list[int]) -> dict[int, tuple[Thread, ...]]:
        """The stacks of these processes, as far as they can be had, a few at a time."""
        if not pids:
            return {}
        with ThreadPoolExecutor(max_workers=4) as pool:
            found = dict(zip(pids, pool.map(self._read_one, pids), strict=True))
        return {pid: threads for pid, threads in found.items() if threads}

    def _read_one(self, pid: int) -> tuple[Thread, ...]:
        return (self._with_py_spy(pid) if not self.refused else ()) or self._with_faulthandler(pid)

    def _with_py_spy(self, pid: int) -> tuple[Thread, ...]:
        # A stopped process cannot be paused by ptrace without waking its parent: read it as it stands.
        mode = ["--nonblocking"] if _state(pid) in ("T", "t", "D") else []
        try:
            done = subprocess.run(
                [self._py_spy, "dump", "--json", "--pid", str(pid), *mode], capture_output=True, timeout=10, check=False, env=_clean_env()
            )
        except (OSError, subprocess.TimeoutExpired):
            return ()
        if done.returncode:
            said = done.stderr.decode(errors="replace")
            if "ermission" in said or "Operation not permitted" in said:
                self.refused = "ptrace is refused here, so stacks come from faulthandler only"
            return ()
        try:
            return tuple(_thread(entry, pid) for entry in json.loads(done.stdout))
        except (ValueError, KeyError, TypeError):
            return ()

    def _with_faulthandler(self, pid: int) -> tuple[Thread, ...]:
        """Ask the probe's faulthandler; only where the probe has registered it, or the signal would kill."""
        path = self._live / f"t-{pid}"
        if not _catches(pid, _STACK_SIGNAL):  # it may have become another program since, which the signal would kill
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
                return parse_faulthandler(text, _cwd(pid))
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
    cwd = _cwd(pid)
    frames = tuple(
        Frame(_absolute(str(frame["filename"]), cwd), int(frame["line"] or 0), _bare(str(frame["name"])))
        for frame in entry["frames"]  # type: ignore[attr-defined]
    )
    return Thread(
        name=str(entry.get("thread_name") or ""),
        frames=frames,
        is_main=entry.get("os_thread_id") == pid,
        owns_gil=bool(entry.get("owns_gil")),
        is_active=bool(entry.get("active")),
    )


def _bare(name: str) -> str:
    """py-spy gives `Trainer.fit`, tracebacks give `fit`: one spelling for both."""
    return name.rsplit(".", 1)[-1]


def _find_py_spy() -> str:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or ""


def _clean_env() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH")}


def _absolute(file: str, cwd: str) -> str:
    return file if file.startswith(("/", "<")) or not cwd else os.path.normpath(os.path.join(cwd, file))


def _cwd(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


def _catches(pid: int, number: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        caught = int(status.split("SigCgt:")[1].split()[0], 16)
    except (OSError, IndexError, ValueError):
        return False
    return bool(caught >> (number - 1) & 1)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (OSError, IndexError):
        return ""
