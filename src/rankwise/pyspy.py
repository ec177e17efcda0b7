"""Runs py-spy, which reads the Python stacks of another process from outside."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

_ENVIRONMENT = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH")
_running: set[subprocess.Popen[bytes]] = set()


class NoStack(Exception):
    """py-spy read nothing; the text says why. `is_refused`: ptrace is not allowed here. `is_slow`: it took too long."""

    def __init__(self, why: str, *, is_refused: bool = False, is_slow: bool = False) -> None:
        super().__init__(why)
        self.is_refused, self.is_slow = is_refused, is_slow


def find_py_spy() -> str:
    """py-spy's path, beside this Python or on PATH; empty where it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or ""


def read_threads(pid: int, timeout_s: float) -> list[dict[str, Any]]:
    """The threads as py-spy's JSON tells them; raises NoStack.

    The process is not stopped meanwhile: a stuck one stands still anyway, and a py-spy that has to be killed would leave it stopped.
    """
    program = find_py_spy()
    if not program:
        raise NoStack("py-spy is not installed", is_refused=True)
    command = [program, "dump", "--json", "--nonblocking", "--pid", str(pid)]
    environ = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ) as running:
        _running.add(running)
        try:
            out, err = running.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise NoStack(f"py-spy took more than {timeout_s:g} s", is_slow=True) from None
        finally:
            running.kill()
            _running.discard(running)
    if running.returncode:
        said = (err.decode(errors="replace").strip() or "nothing").splitlines()[-1][:200]
        raise NoStack(f"py-spy said {said}", is_refused="ermission" in said or "Operation not permitted" in said)
    try:
        threads = json.loads(out)
    except ValueError:
        threads = None
    if not isinstance(threads, list):
        raise NoStack("py-spy's answer was not understood")
    return threads


@atexit.register
def _kill_running() -> None:
    for program in list(_running):
        with contextlib.suppress(OSError):
            program.kill()
