"""The pool's numbers for Prometheus, read when they are scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rankwise.pool.stats import EDGES, Counters

_GAUGES = {
    "queued": "tasks that wait",
    "running": "tasks with a worker",
    "replicas": "workers that hold the model",
    "memory_bytes": "measured size of the model",
}
_COUNTERS = {
    "completed": "tasks that gave a result",
    "failed": "tasks that ended with an exception",
    "rejected": "tasks refused because the queue was full",
    "cancelled": "tasks cancelled before they ran",
    "expired": "tasks whose deadline passed",
    "rerun": "tasks that ran again because their worker died",
    "quarantined": "inputs that kill workers",
    "loads": "times the model was loaded",
    "evictions": "times the model left a worker",
    "rows": "rows that ran",
    "busy_s": "seconds workers spent in the model",
}


class PoolCollector:
    """For prometheus_client's registry."""

    def __init__(self, snapshot: Callable[[], dict[str, Any]], counters: Counters) -> None:
        self._snapshot, self._counters = snapshot, counters

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        now = self._snapshot()
        for name, text in _GAUGES.items():
            gauge = GaugeMetricFamily(f"rankwise_pool_{name}", text, labels=["model"])
            for model, numbers in now["models"].items():
                gauge.add_metric([model], numbers.get(name) or 0)
            yield gauge
        for name, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"rankwise_pool_{name.replace('busy_s', 'busy_seconds')}", text, labels=["model"])
            for model, numbers in now["models"].items():
                counter.add_metric([model], numbers[name])
            yield counter
        latency = HistogramMetricFamily("rankwise_pool_latency_seconds", "from submit to result", labels=["model"])
        for model, counted in self._counters.models.items():
            latency.add_metric([model], _buckets(counted.latency.counts), counted.latency.sum_s)
        yield latency
        restarts = CounterMetricFamily("rankwise_pool_restarts", "workers that were replaced")
        restarts.add_metric([], now["restarts"])
        yield restarts


def _buckets(counts: list[int]) -> list[tuple[str, float]]:
    total, buckets = 0, []
    for edge, count in zip((*[f"{edge:g}" for edge in EDGES], "+Inf"), counts):
        total += count
        buckets.append((edge, float(total)))
    return buckets
