"""What the pool counts about itself."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

# Upper edges in seconds, from 50 µs to a minute: what Prometheus is shown.
EDGES: tuple[float, ...] = (*[base * 10**power for power in range(-5, 2) for base in (1.0, 2.0, 5.0)][2:], 100.0)
_STEP = 1.1  # from one fine edge to the next, so that percentiles are right to some percent


def _finer(edges: tuple[float, ...]) -> list[float]:
    """These edges, with as many between each two as make even steps."""
    fine = [edges[0]]
    for low, high in pairwise(edges):
        parts = math.ceil(math.log(high / low, _STEP))
        fine += [low * (high / low) ** (i / parts) for i in range(1, parts)]
        fine.append(high)
    return fine


_FINE = _finer((1e-6, *EDGES))


class Histogram:
    """Counts per bucket; enough for percentiles and for Prometheus."""

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
        """Where the q-th part of all lies, as if those in a bucket were spread evenly over it."""
        if not self.total:
            return None
        left = q * self.total
        for low, high, count in zip((0.0, *_FINE), (*_FINE, self._max_s), self._counts):
            if count and left <= count:
                return min(low + (high - low) * left / count, self._max_s)
            left -= count
        return self._max_s

    def up_to_edges(self) -> list[int]:
        """How many took no longer than each of the edges, and how many there are."""
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
    ones: list[tuple[float, int]] = field(default_factory=list)  # tasks that ran by themselves, not yet counted: latency, nanoseconds
    waiting: list[float] = field(default_factory=list)  # latencies not yet in the histogram: nobody may look for a long while
    chunks: list[tuple[float, int]] = field(default_factory=list)  # the same, of so many requests at once

    def ran(self, tasks: int, rows: int, seconds: float) -> None:
        self.orders += 1
        self.tasks += tasks
        self.rows += rows or tasks
        self.busy_s += seconds

    def did_one(self, latency_s: float, nanoseconds: int) -> None:
        self.ones.append((latency_s, nanoseconds))
        if len(self.ones) > 1000:
            self.sort_in()

    def completed_many(self, latencies_s: list[float]) -> None:
        self.completed += len(latencies_s)
        self.waiting += latencies_s
        if len(self.waiting) > 1000:
            self.sort_in()

    def did_chunk(self, latency_s: float, seconds: float, completed: int, failed: int) -> None:
        """Requests that ran one by one and were answered together."""
        self.completed += completed
        self.failed += failed
        self.orders += completed + failed
        self.tasks += completed + failed
        self.rows += completed + failed
        self.busy_s += seconds
        self.chunks.append((latency_s, completed + failed))
        if len(self.chunks) > 1000:
            self.sort_in()

    def took(self, seconds: float) -> None:
        self.waiting.append(seconds)
        if len(self.waiting) > 1000:
            self.sort_in()

    def sort_in(self) -> None:
        ones, self.ones = self.ones, []
        self.completed += len(ones)
        self.orders += len(ones)
        self.tasks += len(ones)
        self.rows += len(ones)
        self.busy_s += sum([nanoseconds for _, nanoseconds in ones]) / 1e9
        self.waiting += [latency_s for latency_s, _ in ones]
        for seconds in self.waiting:
            self.latency.add(seconds)
        self.waiting = []
        for seconds, count in self.chunks:
            self.latency.add(seconds, count)
        self.chunks = []

    def to_dict(self) -> dict[str, Any]:
        self.sort_in()
        numbers = {name: value for name, value in vars(self).items() if isinstance(value, (int, float))}
        return {
            **numbers,
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
