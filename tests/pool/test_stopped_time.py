"""Tests of programs that use a pool may stop the time."""

from __future__ import annotations

import sys
import time

import numpy as np
import pytest

pytest.importorskip("torch")

from rankwise.pool import DeadlineExceeded, Model, Pool, TaskHung
from tests.pool.models import HANG

LONG_S = 60


def stop_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As freezegun does: in `time`, and wherever a module has the function by a name of its own."""
    for real, stopped in ((time.monotonic, lambda: 1.9e9), (time.monotonic_ns, lambda: 1_900_000_000 * 10**9)):
        for module in [module for name, module in sys.modules.items() if name == "time" or name.startswith("rankwise")]:
            for name in [name for name, value in vars(module).items() if value is real]:
                monkeypatch.setattr(module, name, stopped)


def test_a_pool_goes_on_while_the_time_stands_still_and_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones((1, 4), np.float32)
    models = {"batched": Model("tests.pool.models:Moody", max_batch=8), "hangs": Model("tests.pool.models:Moody", limit_s=0.5)}
    with Pool(models, workers=1) as pool:
        pool.submit("batched", x).result(LONG_S)
        with monkeypatch.context() as stopped:
            stop_the_time(stopped)
            assert all(y.tolist() == [[2.0] * 4] for y in pool.map("batched", [x] * 100))
            late = pool.submit("batched", x, deadline_s=1e-6)
            assert isinstance(late.exception(LONG_S), DeadlineExceeded)

        assert isinstance(pool.submit("hangs", np.full((1, 4), HANG, np.float32)).exception(LONG_S), TaskHung)
        assert pool.submit("batched", x).result(LONG_S).tolist() == [[2.0] * 4]
