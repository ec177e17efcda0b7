"""The pool's numbers for Prometheus, read when they are scraped."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rankwise.errors import UsageError
from rankwise.pool.stats import EDGES, Counters, Histogram

if TYPE_CHECKING:
    from rankwise.pool.pool import Pool

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


_collectors: weakref.WeakKeyDictionary[Any, PoolCollector] = weakref.WeakKeyDictionary()


def register(pool: Pool, counters: Counters, registry: Any, name: str) -> None:
    """All pools of a registry are shown by one collector, because a registry takes each name only once."""
    if registry is None:
        from prometheus_client import REGISTRY as registry
    collector = _collectors.get(registry)
    if collector is None:
        collector = _collectors[registry] = PoolCollector()
        collector.add(pool, counters, name)
        registry.register(collector)
    else:
        collector.add(pool, counters, name)


class PoolCollector:
    """For prometheus_client's registry. Pools that are gone are shown no more."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._pools: weakref.WeakKeyDictionary[Pool, tuple[str, Counters]] = weakref.WeakKeyDictionary()

    def add(self, pool: Pool, counters: Counters, name: str) -> None:
        others = {known for other, (known, _) in self._pools.items() if other is not pool}
        if name in others:
            raise UsageError(f"there is a pool called {name!r} in this registry already", next=("give each pool a name of its own",))
        if not name and pool in self._pools:
            return
        name = name or next(number for number in map(str, self._numbers) if number not in others)
        self._pools[pool] = (name, counters)

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        shown = [(name, pool.stats(), counters) for pool, (name, counters) in list(self._pools.items())]
        models = [(pool, model, numbers) for pool, now, _ in shown for model, numbers in now["models"].items()]
        for name, text in _GAUGES.items():
            gauge = GaugeMetricFamily(f"rankwise_pool_{name}", text, labels=["pool", "model"])
            for pool, model, numbers in models:
                gauge.add_metric([pool, model], numbers.get(name) or 0)
            yield gauge
        for name, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"rankwise_pool_{name.replace('busy_s', 'busy_seconds')}", text, labels=["pool", "model"])
            for pool, model, numbers in models:
                counter.add_metric([pool, model], numbers[name])
            yield counter
        latency = HistogramMetricFamily("rankwise_pool_latency_seconds", "from submit to result", labels=["pool", "model"])
        for pool, _, counters in shown:
            for model, counted in counters.models.items():
                latency.add_metric([pool, model], _buckets(counted.latency), counted.latency.sum_s)
        yield latency
        restarts = CounterMetricFamily("rankwise_pool_restarts", "workers that were replaced", labels=["pool"])
        for pool, now, _ in shown:
            restarts.add_metric([pool], now["restarts"])
        yield restarts


def _buckets(latency: Histogram) -> list[tuple[str, float]]:
    edges = [*[f"{edge:g}" for edge in EDGES], "+Inf"]
    return [(edge, float(count)) for edge, count in zip(edges, latency.up_to_edges())]
