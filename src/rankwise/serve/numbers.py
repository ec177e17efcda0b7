"""The server's own numbers for Prometheus, beside those of its pool."""

from __future__ import annotations

import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from rankwise.pool import Pool

_EDGES = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Numbers:
    def __init__(self, pool: Pool) -> None:
        self._registry = CollectorRegistry()
        labels = ("protocol", "model", "status")
        self._requests = Counter("rankwise_serve_requests", "requests that were answered", labels, registry=self._registry)
        self._seconds = Histogram(
            "rankwise_serve_request_seconds", "from the whole request to its answer", labels[:2], buckets=_EDGES, registry=self._registry
        )
        self.open = Gauge("rankwise_serve_open_requests", "requests that are being answered", registry=self._registry)
        self._known: dict[tuple[str, str, str], Any] = {}
        pool.register_metrics(self._registry, "serve")

    def count(self, protocol: str, model: str, status: int | str, started: float) -> None:
        key = (protocol, model, str(status))
        children = self._known.get(key)
        if children is None:
            children = self._known[key] = self._requests.labels(*key), self._seconds.labels(*key[:2])
        children[0].inc()
        children[1].observe(time.monotonic() - started)

    def page(self) -> bytes:
        return generate_latest(self._registry)
