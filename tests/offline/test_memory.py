"""A job's memory does not grow with its rows. Takes a minute, so only with RANKWISE_LONG=1."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

MEASURE = """
import sys, threading, time, torch, rankwise
import rankwise.offline.child
def anonymous():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) // 1024
before = peak = anonymous()
def watch():
    global peak
    while True:
        peak = max(peak, anonymous())
        time.sleep(0.02)
threading.Thread(target=watch, daemon=True).start()
rankwise.predict(lambda: torch.nn.Linear(64, 32), sys.argv[1], sys.argv[2], workers=0, batch=256)
print(peak - before)
"""


@pytest.mark.skipif(not os.environ.get("RANKWISE_LONG"), reason="needs RANKWISE_LONG=1 and a minute")
def test_eight_times_the_rows_take_no_more_memory(tmp_path: Path) -> None:
    peaks = []
    for count in (250_000, 2_000_000):
        rows = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (count, 64))
        rows[:] = 1
        rows.flush()
        output = tmp_path / f"out-{count}.parquet"
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, str(tmp_path / "x.npy"), str(output)], capture_output=True, text=True, timeout=170
        )
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout))

    assert peaks[1] < peaks[0] + 100, f"{peaks} MB, where the larger input has 488"
