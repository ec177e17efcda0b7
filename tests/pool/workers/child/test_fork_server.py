"""Whatever becomes of the parent, nothing of its pool is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.families import mostly_live

SCRIPT = """
import sys, time
import numpy as np
from rankwise.pool import Model, Pool
pool = Pool({"echo": Model("tests.pool.models:echo"), "sleeper": Model("tests.pool.models:sleeper")}, workers=2)
pool.submit("echo", np.ones(3)).result(60)
x = pool.empty((1_000_000,))
busy = [pool.submit("sleeper", %s), pool.submit("echo", x)]
print("torch" in sys.modules, flush=True)
%s
"""
# An end of the interpreter's own waits for what was submitted.
ENDS = {"killed": (30.0, "time.sleep(60)"), "left": (30.0, "import os; os._exit(0)"), "raised": (0.5, "raise SystemExit(3)")}


@pytest.mark.parametrize("how", mostly_live(ENDS))
def test_nothing_is_left_a_second_after_the_parent(how: str) -> None:
    before = set(os.listdir("/dev/shm"))
    root = Path(__file__).parents[4]
    command = [sys.executable, "-c", SCRIPT % ENDS[how]]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root)
    assert parent.stdout is not None and parent.stderr is not None
    with parent.stdout:
        assert parent.stdout.readline().strip() == "False"  # torch is the workers' business
        below = psutil.Process(parent.pid).children(recursive=True) if how == "killed" else []
        if how == "killed":
            assert len(below) == 3
            parent.send_signal(signal.SIGKILL)
        parent.wait(20)
    time.sleep(1.0)

    with parent.stderr:
        assert "Traceback" not in parent.stderr.read()  # of a worker that finds nobody to answer
    assert not [process for process in below if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert not {name for name in set(os.listdir("/dev/shm")) - before if "rankwise" in name}
