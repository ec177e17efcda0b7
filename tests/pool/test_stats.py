"""What `Pool.stats()` says."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("torch")

from rankwise.pool import Pool

WAIT_S = 60.0


def test_a_worker_that_does_not_run_yet_has_no_pid() -> None:
    """A 0 would be our own process group to whoever sends it a signal."""
    with Pool({"same": "torch.nn:Identity"}, workers=2) as pool:
        seen = [worker["pid"] for worker in pool.stats()["workers"]]
        end = time.monotonic() + WAIT_S
        while not all(pids := [worker["pid"] for worker in pool.stats()["workers"]]) and time.monotonic() < end:
            seen += pids
            time.sleep(0.01)

    assert None in seen and 0 not in seen
    assert all(pids) and len(set(pids)) == 2
