"""An engine is chosen by name, and a new one needs nothing but the protocol."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from rankwise.errors import UsageError
from rankwise.pool import Model, Pool, backend
from rankwise.pool.schedule.state import Plan
from rankwise.pool.stats import Counters


class Constant:
    """The smallest engine: every task gives 7."""

    def __init__(self, models: dict[str, Model], options: backend.PoolOptions) -> None:
        self.models, self.plan, self.counters = backend.states_of(models, ()), Plan([], "nobody"), Counters(list(models))
        self.is_closed = False

    def submit(self, model: Any, inputs: Any, deadline_s: Any, priority: Any, seed: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(7)
        return future

    def stream(self, requests: Any, *_: Any) -> Any:
        return (7 for _ in requests)

    def has_open_tasks(self) -> bool:
        return False

    def close(self, cancel: bool, timeout: float | None) -> None:
        self.is_closed = True


def test_an_engine_of_ones_own_is_used_by_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backend.ENGINES, "processes", "constant_engine")
    monkeypatch.setattr(backend.importlib, "import_module", lambda name: type("Module", (), {"start": Constant}))
    with Pool({"m": Model("torch.nn:Identity")}) as pool:
        assert pool.submit("m", 1).result() == 7
        assert list(pool.map("m", [1, 2])) == [7, 7]
    assert pool._backend.is_closed


def test_an_engine_that_is_not_there_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="engine is 'cloud'"):
        Pool({"m": Model("torch.nn:Identity")}, engine="cloud")
