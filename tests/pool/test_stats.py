"""The pool's counters: percentiles that are right to some percent, batches by their size, and who may read them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

from prometheus_client import CollectorRegistry, generate_latest

from rankwise.errors import UsageError
from rankwise.pool import Pool, stats
from rankwise.pool.stats import EDGES, Counters, Histogram, ModelCounters, answer, look, open_window, pools, register

WAIT_S = 60.0


class Shown:
    """What a collector asks of one."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def stats(self) -> dict[str, Any]:
        return {"models": {name: counted.to_dict() for name, counted in self._counters.models.items()}, "restarts": self._counters.restarts}


@pytest.mark.parametrize("seconds", [2e-6, 1.3e-3, 0.5, 70.0])
def test_a_percentile_is_right_to_some_percent(seconds: float) -> None:
    histogram = Histogram()
    for number in range(1, 101):
        histogram.add(seconds * number / 100)

    assert histogram.quantile(0.5) == pytest.approx(seconds / 2, rel=0.08)
    assert histogram.quantile(0.99) == pytest.approx(seconds * 0.99, rel=0.08)
    assert histogram.quantile(1.0) == pytest.approx(seconds)


def test_no_percentile_is_beyond_what_was_seen() -> None:
    histogram = Histogram()
    assert histogram.quantile(0.5) is None
    histogram.add(1000.0, 3)

    assert histogram.quantile(0.99) <= 1000.0
    assert (histogram.total, histogram.sum_s) == (3, 3000.0)


def test_an_edge_counts_what_took_no_longer() -> None:
    histogram = Histogram()
    for seconds in (EDGES[0], EDGES[0] * 1.01, EDGES[-1], EDGES[-1] + 1):
        histogram.add(seconds)

    counts = histogram.up_to_edges()

    assert len(counts) == len(EDGES) + 1
    assert (counts[0], counts[1], counts[-2], counts[-1]) == (1, 2, 3, 4)


def test_batches_are_counted_by_their_rows() -> None:
    counted = ModelCounters()
    counted.ran(tasks=2, rows=6, seconds=0.5)
    counted.ran(tasks=3, rows=0, seconds=0.25)
    counted.ran(tasks=1, rows=6, seconds=1.0, ok=False)
    counted.did_chunk(0.1, 0.5, completed=4, failed=1)

    said = counted.to_dict()

    assert said["batches"] == {6: (1, 500_000_000), 3: (1, 250_000_000), 1: (4, 500_000_000)}
    assert (said["orders"], said["tasks"], said["rows"], said["busy_s"]) == (8, 11, 20, 2.25)
    assert (said["completed"], said["failed"], said["mean_batch"]) == (4, 1, 2.5)


def test_what_only_waits_to_be_sorted_in_is_counted_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "_MOST_WAITING", 2)
    counted = ModelCounters()

    for _ in range(2):
        counted.did_one(0.001, 1_000_000)
    held = len(counted.waiting), counted.completed
    counted.did_one(0.001, 1_000_000)

    assert held == (2, 0)
    assert (len(counted.waiting), counted.completed) == (0, 3)
    counted.completed_many([0.001, 0.001])
    counted.took(0.001)
    assert counted.waiting == []
    assert (counted.to_dict()["completed"], counted.latency.total, counted.batches) == (5, 6, {1: (3, 3_000_000)})


def test_a_model_that_never_ran_has_no_mean() -> None:
    said = ModelCounters().to_dict()

    assert (said["mean_batch"], said["p50_s"], said["p99_s"]) == (None, None, None)


def test_a_name_is_taken_until_it_is_forgotten() -> None:
    counters = Counters(["a"])
    with pytest.raises(UsageError, match="'a' is still leaving"):
        counters.add("a")
    counters.forget("a")

    assert counters.add("a") is counters.of("a")


def test_pools_of_one_registry_are_shown_by_their_names() -> None:
    registry, counters = CollectorRegistry(), Counters(["net"])
    one, other = Shown(counters), Shown(counters)
    counters.of("net").ran(1, 1, 0.5)
    counters.of("net").took(0.003)
    counters.restarts = 2
    register(one, counters, registry, "")
    register(one, counters, registry, "")
    register(other, counters, registry, "mine")

    with pytest.raises(UsageError, match="a pool called 'mine'"):
        register(one, counters, registry, "mine")
    page = generate_latest(registry).decode()
    del one
    later = generate_latest(registry).decode()

    assert 'rankwise_pool_rows_total{model="net",pool="1"} 1.0' in page
    assert 'rankwise_pool_busy_seconds_total{model="net",pool="mine"} 0.5' in page
    assert 'rankwise_pool_latency_seconds_bucket{le="0.002",model="net",pool="1"} 0.0' in page
    assert 'rankwise_pool_latency_seconds_bucket{le="0.005",model="net",pool="1"} 1.0' in page
    assert 'rankwise_pool_restarts_total{pool="1"} 2.0' in page
    assert 'pool="1"' not in later and 'pool="mine"' in later


@pytest.fixture
def window() -> Iterator[Any]:
    listener = open_window(7)
    assert listener is not None
    with listener:
        yield listener


def test_who_looks_through_the_window_gets_the_numbers(window: Any) -> None:
    name = f"rankwise-pool-{os.getpid()}-7"
    seen: list[Any] = []
    visitor = threading.Thread(target=lambda: seen.append(look(name)))
    visitor.start()
    window.setblocking(True)
    answer(window, {"restarts": 3})
    visitor.join()

    assert seen == [{"restarts": 3}]
    assert (os.getpid(), name) in pools()


def test_a_window_that_is_gone_or_taken(window: Any) -> None:
    assert open_window(7) is None
    window.close()

    assert look(f"rankwise-pool-{os.getpid()}-7") is None
    assert (os.getpid(), f"rankwise-pool-{os.getpid()}-7") not in pools()


def test_where_nobody_looks_there_is_nothing_to_answer(window: Any) -> None:
    answer(window, {})


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
