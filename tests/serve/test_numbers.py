"""The server's metrics, as Prometheus reads them."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("httptools")

from prometheus_client.parser import text_string_to_metric_families

from rankwise.serve.numbers import Numbers
from rankwise.serve.served import Served

LABELS = ("protocol", "model", "version", "shadow", "status", "outcome", "le")


class Pool:
    def register_metrics(self, registry: Any, name: str) -> None:
        assert name == "serve"


def samples(numbers: Numbers, name: str) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(numbers.page().decode())
    found = [one for family in families for one in family.samples if one.name == name]
    return {tuple(one.labels[label] for label in LABELS if label in one.labels): one.value for one in found}


def test_requests_are_counted_by_who_asked_and_how_it_went() -> None:
    numbers = Numbers(Pool())  # type: ignore[arg-type]
    for status in (200, 200, "503"):
        numbers.count("http", "m", status, time.monotonic() - 0.015)
    numbers.count("grpc", "m", "OK", time.monotonic())
    numbers.num_open = 3
    numbers.count_shadow("m", "new", "same")

    assert samples(numbers, "rankwise_serve_requests_total") == {("http", "m", "200"): 2, ("http", "m", "503"): 1, ("grpc", "m", "OK"): 1}
    assert samples(numbers, "rankwise_serve_request_seconds_count") == {("http", "m"): 3, ("grpc", "m"): 1}
    below = {key[-1]: value for key, value in samples(numbers, "rankwise_serve_request_seconds_bucket").items() if key[0] == "http"}
    assert below["0.01"] == 0 and below["+Inf"] == 3
    assert samples(numbers, "rankwise_serve_open_requests") == {(): 3}
    assert samples(numbers, "rankwise_serve_shadow_requests_total") == {("m", "new", "same"): 1}


def test_caches_are_read_when_they_are_scraped() -> None:
    numbers = Numbers(Pool())  # type: ignore[arg-type]
    model, without = (object.__new__(Served) for _ in range(2))
    counted = {"cache_hit": 0, "cache_miss": 0}
    model.name, model.version, model.cache = "m", "2", SimpleNamespace(nbytes=100)  # type: ignore[assignment]
    model.tally = SimpleNamespace(of=lambda what: (counted[what], 0))  # type: ignore[assignment]
    without.name, without.version, without.cache = "n", "1", None
    numbers.show_caches(SimpleNamespace(all=[model, without, object()]))  # type: ignore[arg-type]
    counted["cache_hit"] = 5

    assert samples(numbers, "rankwise_serve_cache_lookups_total") == {("m", "2", "hit"): 5, ("m", "2", "miss"): 0}
    assert samples(numbers, "rankwise_serve_cache_bytes") == {("m", "2"): 100}
