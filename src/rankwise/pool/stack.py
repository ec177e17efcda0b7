"""Where a worker is right now, in the user's words: py-spy from outside, faulthandler where that is refused."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from rankwise.pool.crew import Edge

STACK_SIGNAL = signal.SIGRTMAX - 3
_OURS = ("rankwise/pool/child/", "runpy")
_TIMEOUT_S = 10.0  # for py-spy, which looks through all a process has mapped; a card's driver maps much
_ANSWER_S, _SETTLE_S = 2.0, 0.05


def stack_of(edge: Edge) -> str:
    """The Python stack, innermost first, without our own frames; where nothing can be had, why."""
    frames, why_not = _with_py_spy(edge.pid) if edge.pid else ([], "it had not started")
    if not frames:
        frames, silent = _with_faulthandler(edge)
        why_not = f"{why_not}; {silent}"
    if not frames:
        return f"(its stack could not be read: {why_not})"
    lines = [line for line in frames if not any(ours in line for ours in _OURS)] or frames
    if edge.page.awaits_card:
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


def _with_faulthandler(edge: Edge) -> tuple[list[str], str]:
    """The worker's own handler writes to its crash notes, line by line; a stopped worker cannot."""
    before = len(edge.crash_notes())
    if not edge.signal(STACK_SIGNAL):
        return [], "the worker is gone"
    end, notes = time.monotonic() + _ANSWER_S, ""
    while time.monotonic() < end:
        time.sleep(_SETTLE_S)
        last, notes = notes, edge.crash_notes()[before:]
        if notes and notes == last:
            break
    frames = [line.strip() for line in notes.splitlines() if line.startswith("  File ")]
    return frames, "" if frames else "the worker did not answer a signal"
