"""The pool's counters, and who reads them: Prometheus, and `rankwise top` through a socket."""

from __future__ import annotations

import itertools
import json
import os
import socket
import struct
import weakref
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from rankwise.errors import UsageError

# Upper edges of the buckets that Prometheus is shown, in seconds: from 50 µs to 100 s.
EDGES: tuple[float, ...] = (*[base * 10**power for power in range(-5, 2) for base in (1.0, 2.0, 5.0)][2:], 100.0)
# 40 finer buckets between each two of them, from a microsecond on, so that percentiles are right to a few percent.
_FINE: list[float] = [*[low * (high / low) ** (i / 40) for low, high in pairwise((1e-6, *EDGES)) for i in range(40)], EDGES[-1]]
_MOST_WAITING = 1000  # numbers kept before they are sorted into buckets, which takes longer than a quick task


class Histogram:
    """Counts values per bucket, which is enough for percentiles and for Prometheus."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_FINE) + 1)
        self.total = 0
        self.sum_s = 0.0
        self._max_s = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        self._counts[bisect_left(_FINE, seconds)] += count
        self.total += count
        self.sum_s += seconds * count
        if seconds > self._max_s:
            self._max_s = seconds

    def quantile(self, q: float) -> float | None:
        """The number of seconds below which the part `q` of all values lies, as if the values in a bucket were spread evenly over it."""
        if not self.total:
            return None
        left = q * self.total
        for low, high, count in zip((0.0, *_FINE), (*_FINE, self._max_s), self._counts):
            if count and left <= count:
                return min(low + (high - low) * left / count, self._max_s)
            left -= count
        return self._max_s

    def up_to_edges(self) -> list[int]:
        """For each edge, how many values are not above it; at the end, how many values there are."""
        sums = list(accumulate(self._counts))
        return [*[sums[_FINE.index(edge)] for edge in EDGES], self.total]


@dataclass
class ModelCounters:
    completed: int = 0
    failed: int = 0
    rejected: int = 0
    cancelled: int = 0
    expired: int = 0
    rerun: int = 0
    quarantined: int = 0
    loads: int = 0
    evictions: int = 0
    orders: int = 0
    tasks: int = 0
    rows: int = 0
    busy_s: float = 0.0
    latency: Histogram = field(default_factory=Histogram)
    batches: dict[int, tuple[int, int]] = field(default_factory=dict)  # by rows: batches of that size that worked, and their nanoseconds
    # Not sorted in yet: a latency, how many requests had it, and the nanoseconds of a task that ran alone and is not counted elsewhere.
    waiting: list[tuple[float, int, int | None]] = field(default_factory=list)

    def ran(self, tasks: int, rows: int, seconds: float, ok: bool = True) -> None:
        if ok:
            self._count_batches(rows or tasks, 1, int(seconds * 1e9))
        self._count_orders(1, tasks, rows or tasks, seconds)

    def did_one(self, latency_s: float, nanoseconds: int) -> None:
        self.waiting.append((latency_s, 1, nanoseconds))
        if len(self.waiting) > _MOST_WAITING:
            self.sort_in()

    def completed_many(self, latencies_s: list[float]) -> None:
        self.completed += len(latencies_s)
        for latency_s in latencies_s:
            self.took(latency_s)

    def did_chunk(self, latency_s: float, seconds: float, completed: int, failed: int) -> None:
        """Count requests that ran one by one and were answered together."""
        count = completed + failed
        self.completed += completed
        self.failed += failed
        self._count_orders(count, count, count, seconds)
        self._count_batches(1, completed, int(seconds * 1e9))
        self.took(latency_s, count)

    def took(self, latency_s: float, requests: int = 1) -> None:
        self.waiting.append((latency_s, requests, None))
        if len(self.waiting) > _MOST_WAITING:
            self.sort_in()

    def sort_in(self) -> None:
        waiting, self.waiting = self.waiting, []
        for latency_s, requests, _ in waiting:
            self.latency.add(latency_s, requests)
        ones = [nanoseconds for _, _, nanoseconds in waiting if nanoseconds is not None]
        self.completed += len(ones)
        self._count_orders(len(ones), len(ones), len(ones), sum(ones) / 1e9)
        self._count_batches(1, len(ones), sum(ones))

    def _count_orders(self, orders: int, tasks: int, rows: int, seconds: float) -> None:
        self.orders += orders
        self.tasks += tasks
        self.rows += rows
        self.busy_s += seconds

    def _count_batches(self, rows: int, count: int, nanoseconds: int) -> None:
        if count:
            known, known_ns = self.batches.get(rows, (0, 0))
            self.batches[rows] = known + count, known_ns + nanoseconds

    def to_dict(self) -> dict[str, Any]:
        self.sort_in()
        numbers = {name: value for name, value in vars(self).items() if isinstance(value, (int, float))}
        return {
            **numbers,
            "batches": dict(self.batches),
            "mean_batch": round(self.rows / self.orders, 2) if self.orders else None,
            "p50_s": self.latency.quantile(0.5),
            "p99_s": self.latency.quantile(0.99),
        }


class Counters:
    def __init__(self, names: list[str]) -> None:
        self.models = {name: ModelCounters() for name in names}
        self.restarts = 0

    def of(self, name: str) -> ModelCounters:
        return self.models[name]

    def add(self, name: str) -> ModelCounters:
        """Count for one more model. A name that is still taken belongs to a model that is about to be forgotten."""
        if name in self.models:
            raise UsageError(f"a model {name!r} is still leaving the pool", next=("use another name, or wait",))
        self.models[name] = counted = ModelCounters()
        return counted

    def forget(self, name: str) -> None:
        del self.models[name]


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


def register(pool: Any, counters: Counters, registry: Any, name: str) -> None:
    """Show a pool's numbers. One collector shows all pools of a registry, because a registry takes each name only once."""
    if registry is None:
        from prometheus_client import REGISTRY as registry
    is_new = registry not in _collectors
    collector = _collectors.setdefault(registry, PoolCollector())
    collector.add(pool, counters, name)
    if is_new:
        registry.register(collector)


class PoolCollector:
    """For prometheus_client's registry. It no longer shows pools that have been collected as garbage."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._pools: weakref.WeakKeyDictionary[Any, tuple[str, Counters]] = weakref.WeakKeyDictionary()

    def add(self, pool: Any, counters: Counters, name: str) -> None:
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
        for family, texts in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for name, text in texts.items():
                metric = family(f"rankwise_pool_{name.replace('busy_s', 'busy_seconds')}", text, labels=["pool", "model"])
                for pool, model, numbers in models:
                    metric.add_metric([pool, model], numbers.get(name) or 0)
                yield metric
        latency = HistogramMetricFamily("rankwise_pool_latency_seconds", "from submit to result", labels=["pool", "model"])
        edges = [*[f"{edge:g}" for edge in EDGES], "+Inf"]
        for pool, _, counters in shown:
            for model, counted in list(counters.models.items()):
                latency.add_metric([pool, model], list(zip(edges, map(float, counted.latency.up_to_edges()))), counted.latency.sum_s)
        yield latency
        restarts = CounterMetricFamily("rankwise_pool_restarts", "workers that were replaced", labels=["pool"])
        for pool, now, _ in shown:
            restarts.add_metric([pool], now["restarts"])
        yield restarts


_PREFIX = "rankwise-pool-"
_TIMEOUT_S = 2.0


def open_window(number: int) -> socket.socket | None:
    """A listening socket in the abstract namespace; None if it cannot be opened, which only hides the pool from `rankwise top`."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(f"\0{_PREFIX}{os.getpid()}-{number}")
        listener.listen(4)
        listener.setblocking(False)
    except OSError:
        listener.close()
        return None
    return listener


def answer(listener: socket.socket, stats: dict[str, Any]) -> None:
    """Show the numbers to a process that connects, if it belongs to the same user."""
    try:
        visitor, _ = listener.accept()
    except OSError:
        return
    with visitor:
        try:
            _, uid, _ = struct.unpack("3i", visitor.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid in (os.getuid(), 0):
                visitor.settimeout(0.2)  # an answer fits the socket's buffer, so a slow reader costs nothing
                visitor.sendall(json.dumps(stats).encode())
        except OSError:
            pass


def pools() -> list[tuple[int, str]]:
    """(process id, name of the socket) of every pool on this machine that `rankwise top` can ask."""
    try:
        lines = Path("/proc/net/unix").read_text().splitlines()
    except OSError:
        return []
    names = {line.rsplit("@", 1)[1] for line in lines if f"@{_PREFIX}" in line}
    return sorted((int(name.removeprefix(_PREFIX).split("-")[0]), name) for name in names)


def look(name: str) -> dict[str, Any] | None:
    """The numbers of a pool; None if the pool is gone or belongs to another user."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as visitor:
        visitor.settimeout(_TIMEOUT_S)
        try:
            visitor.connect(f"\0{name}")
            data = b"".join(iter(lambda: visitor.recv(65536), b""))
            return dict(json.loads(data)) if data else None
        except (OSError, ValueError):
            return None
