"""Orders that wait behind a slow one are taken back, in whatever moment the worker goes on to the next."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from rankwise.pool.schedule.scheduler import Scheduler
from rankwise.pool.schedule.state import Holding, WorkerState
from rankwise.pool.schedule.tasks import Task
from rankwise.pool.workers.supervisor import Supervisor
from tests.pool.schedule.test_scheduler import state


class Page:
    """A worker that is seen to run these serials, one after the other, each time somebody looks."""

    def __init__(self, *serials: int) -> None:
        self._serials = list(serials)
        self.recalled = 0

    @property
    def running(self) -> tuple[int, int]:
        return (self._serials.pop(0) if len(self._serials) > 1 else self._serials[0]), 0

    def recall(self, serial: int) -> None:
        self.recalled = serial


@pytest.mark.parametrize(("serials", "again"), [((1,), 2), ((1, 1, 2), 2), ((1, 2), 1), ((3,), 0), ((0,), 0)])
def test_nothing_is_left_with_a_worker_that_will_not_begin_it(serials: tuple[int, ...], again: int) -> None:
    model = state(1)
    made = Scheduler([model], {})
    page: Any = Page(*serials)
    busy, idle = (WorkerState(number, "cpu", is_ready=True, handle=SimpleNamespace(page=page)) for number in (1, 2))
    made.workers = {1: busy, 2: idle}
    busy.holds[1] = Holding(model, 10, is_loading=False)
    tasks = [Task(model, (("=", 1), 1, (), True), 0.0) for _ in range(3)]
    for task in tasks:
        made._order(busy, model, [task], 0.001)

    Supervisor(SimpleNamespace(lock=threading.Lock(), scheduler=made), SimpleNamespace())._recall(busy)  # type: ignore[arg-type]

    assert model.queue.waiting == again
    assert page.recalled == (3 if again else 0)
    assert [order.serial for order in busy.inflight.values()] == list(range(1, 4 - again))
