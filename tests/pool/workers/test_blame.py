"""An input that stops its worker is blamed, quarantined and limited like any other that does it harm."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.families import mostly_live

torch = pytest.importorskip("torch")

from rankwise.pool import Model, Pool, Quarantined, TaskHung  # noqa: E402
from rankwise.pool.errors import Death, is_hopeless, is_quarantined  # noqa: E402
from rankwise.pool.schedule.state import Seat  # noqa: E402
from rankwise.pool.transport.connection import WorkerHandle  # noqa: E402
from tests.pool.models import STOPS  # noqa: E402

STOPPING = "tests.pool.models:stopping"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    models = {
        "one": Model(STOPPING),
        "rows": Model(STOPPING, max_batch=8, max_delay_ms=20),
        "hasty": Model(STOPPING, limit_s=0.3),
    }
    with Pool(models, workers=2) as pool:
        yield pool


@pytest.mark.parametrize("wish", mostly_live(STOPS))
@pytest.mark.parametrize("model", ["one", "rows"])
def test_an_input_that_stops_workers_fails_alone(pool: Pool, model: str, wish: float) -> None:
    before = [pool.submit(model, torch.full((1, 2), float(i))) for i in range(10)]
    culprit = pool.submit(model, torch.full((1, 2), wish))
    after = [pool.submit(model, torch.full((1, 2), float(i))) for i in range(10)]
    error = culprit.exception(60)

    assert isinstance(error, Quarantined) and "stood stopped" in error.finding.why
    assert error.finding.certain is (wish != 9103.0)  # what C code does could be anybody's
    for futures in (before, after):
        assert [future.result(60)[0, 0].item() for future in futures] == [2.0 * i for i in range(10)]


def test_the_limit_holds_for_it(pool: Pool) -> None:
    assert isinstance(pool.submit("hasty", torch.full((1, 2), 9101.0)).exception(60), TaskHung)


def test_a_worker_that_somebody_else_stops_costs_nobody_anything(pool: Pool) -> None:
    end = time.monotonic() + 60
    while not all(worker["ready"] for worker in pool.stats()["workers"]):  # one is being replaced, after the test before
        assert time.monotonic() < end
        time.sleep(0.02)
    for worker in pool.stats()["workers"]:
        os.kill(worker["pid"], signal.SIGSTOP)
    futures = [pool.submit("one", torch.full((1, 2), float(i))) for i in range(10)]

    assert [future.result(60)[0, 0].item() for future in futures] == [2.0 * i for i in range(10)]


def test_stops_count_as_signals_do() -> None:
    by_itself, by_anybody = Death(-9, stopped=True, own_doing=True), Death(-9, stopped=True)

    assert by_itself.is_proven and not by_anybody.is_proven
    assert is_quarantined(2, 2, by_itself) and not is_quarantined(0, 2, by_anybody)
    assert is_quarantined(0, 3, by_anybody) and not is_quarantined(0, 3, by_anybody, others=2)
    assert is_hopeless(3, by_itself) and not is_hopeless(3, by_anybody) and is_hopeless(6, by_anybody)


def test_a_build_is_not_given_up_for_signals_that_others_get_too() -> None:
    crash, left, hung = Death(-11), Death(1), Death(-9, hung_s=60.0)

    assert is_hopeless(3, crash) and not is_hopeless(3, crash, others=2) and is_hopeless(6, crash, others=2)
    assert is_hopeless(3, left, others=9) and is_hopeless(1, hung)


def test_a_note_counts_only_for_what_it_was_left_under() -> None:
    """A model that sends itself signals and lives on is not to blame for what ends a later task."""
    handle = WorkerHandle(1, Seat("cpu", 1))
    try:
        handle.page.run(7, 1)
        handle.page.note_own_signal()
        assert handle.death(-9).own_doing
        handle.page.run(8, 2)
        assert not handle.death(-9).own_doing
        handle.page.run(0, 0)
        assert not handle.death(-9).own_doing
    finally:
        handle.close()
