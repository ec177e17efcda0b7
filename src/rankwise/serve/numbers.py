"""The server's own Prometheus metrics, beside those of its pool."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rankwise.pool import Pool
from rankwise.serve.catalogue import Catalogue
from rankwise.serve.served import Served

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
        self.num_open = 0  # changed only in the event loop's thread
        Gauge("rankwise_serve_open_requests", "requests that are being answered", registry=self._registry).set_function(
            lambda: self.num_open
        )
        self._shadows = Counter(
            "rankwise_serve_shadow_requests", "what shadows answered", ("model", "shadow", "outcome"), registry=self._registry
        )
        self._known: dict[tuple[str, str, str], Any] = {}
        pool.register_metrics(self._registry, "serve")

    def count(self, protocol: str, model: str, status: int | str, started: float) -> None:
        key = (protocol, model, str(status))
        children = self._known.get(key)
        if children is None:
            children = self._known[key] = self._requests.labels(*key), self._seconds.labels(*key[:2])
        children[0].inc()
        children[1].observe(time.monotonic() - started)

    def count_shadow(self, model: str, shadow: str, outcome: str) -> None:
        self._shadows.labels(model, shadow, outcome).inc()

    def show_caches(self, catalogue: Catalogue) -> None:
        self._registry.register(_Caches(catalogue))

    def page(self) -> bytes:
        return generate_latest(self._registry)


class _Caches(Collector):
    """Metrics of the caches, read when Prometheus scrapes them."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def collect(self) -> Iterator[Metric]:
        labels = ["model", "version"]
        lookups = CounterMetricFamily("rankwise_serve_cache_lookups", "answers looked for in the cache", labels=[*labels, "outcome"])
        nbytes = GaugeMetricFamily("rankwise_serve_cache_bytes", "kept answers", labels=labels)
        for model in self._catalogue.all:
            if isinstance(model, Served) and model.cache is not None:
                for outcome in ("hit", "miss"):
                    lookups.add_metric([model.name, model.version, outcome], model.tally.of(f"cache_{outcome}")[0])
                nbytes.add_metric([model.name, model.version], model.cache.nbytes)
        yield lookups
        yield nbytes
