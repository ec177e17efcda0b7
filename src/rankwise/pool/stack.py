"""Where a worker is right now, in the user's words: py-spy from outside, faulthandler where that is refused."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from rankwise.pool.crew import Edge

STACK_SIGNAL = signal.SIGRTMAX - 3
_OURS = ("rankwise/pool/child/", "runpy")
_TIMEOUT_S = 5.0


def stack_of(edge: Edge) -> str:
    """The Python stack, innermost first, without our own frames; empty where nothing can be had."""
    return _with_py_spy(edge.pid) or _with_faulthandler(edge)


def _with_py_spy(pid: int) -> str:
    beside = Path(sys.executable).with_name("py-spy")
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if not program:
        return ""
    try:
        done = subprocess.run(
            [program, "dump", "--nonblocking", "--pid", str(pid)], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    frames = [line.strip() for line in done.stdout.splitlines() if line.startswith("    ") and not any(ours in line for ours in _OURS)]
    return "\n".join(frames) if not done.returncode else ""


def _with_faulthandler(edge: Edge) -> str:
    """The worker's own handler writes to its crash notes; a stopped worker cannot."""
    before = len(edge.crash_notes())
    try:
        os.kill(edge.pid, STACK_SIGNAL)
    except OSError:
        return ""
    end = time.monotonic() + 1
    while time.monotonic() < end:
        notes = edge.crash_notes()[before:]
        if notes.endswith("\n"):
            return notes
        time.sleep(0.02)
    return ""
