"""Kept answers: only to the same request, to the bit; within the budget; never those of an earlier model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rankwise.pool import Model, Pool
from rankwise.protocol import of_objects, to_raw
from rankwise.serve.cache import Cache, key_of
from rankwise.serve.models_file import Entry
from rankwise.serve.serving import serve
from tests.serve.http_client import Client, tensor

KINDS = {"BOOL": "bool", "UINT8": "<u1", "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}
Request = dict[str, tuple[str, Any]]


@st.composite
def requests(draw: Any) -> Request:
    found: Request = {}
    for name in draw(st.lists(st.sampled_from(["a", "b", "ab", "a, b"]), min_size=1, max_size=3, unique=True)):
        kind = draw(st.sampled_from([*KINDS, "BYTES"]))
        shape = draw(st.lists(st.integers(0, 3), max_size=3).map(tuple))
        if kind == "BYTES":
            count = int(np.prod(shape))
            items = draw(st.lists(st.sampled_from([b"", b"a", b"ab", b"b", b"\0"]), min_size=count, max_size=count))
            found[name] = kind, of_objects(items, shape)
        else:
            found[name] = kind, draw(arrays.arrays(KINDS[kind], shape))
    return found


def exact(request: Request) -> Any:
    return {name: (kind, array.shape, bytes(to_raw(array, kind))) for name, (kind, array) in request.items()}


@settings(max_examples=300, deadline=None)
@given(requests(), requests())
def test_two_requests_have_one_key_only_where_they_are_the_same_to_the_bit(first: Request, second: Request) -> None:
    order = sorted(first)
    if sorted(second) == order:
        assert (key_of(first, order) == key_of(second, order)) == (exact(first) == exact(second))
    assert key_of(first, order) == key_of({name: (kind, array.copy()) for name, (kind, array) in first.items()}, order)


def test_zeros_of_either_sign_and_every_nan_are_different() -> None:
    bits = [0x00000000, 0x80000000, 0x7FC00000, 0x7FC00001, 0xFFC00000]
    keys = {key_of({"x": ("FP32", np.array([b], np.uint32).view(np.float32))}, ["x"]) for b in bits}
    assert len(keys) == len(bits)


def test_the_budget_holds_and_the_oldest_leave() -> None:
    cache = Cache(10_000)
    for i in range(100):
        cache.keep(bytes([i]), [("y", "FP32", np.full(100, i, np.float32))], 0)
        assert cache.nbytes <= 10_000
    assert len(cache) == 10_000 // (512 + 400) and cache.find(bytes([0])) is None
    kept = cache.find(bytes([99]))
    assert kept is not None and np.all(kept[0][2] == 99)
    cache.keep(b"large", [("y", "FP32", np.zeros(10_000, np.float32))], 0)
    assert cache.find(b"large") is None


def test_what_was_kept_is_a_copy_and_an_earlier_models_answer_is_not_kept() -> None:
    cache, array = Cache(10_000), np.zeros(4, np.float32)
    cache.keep(b"k", [("y", "FP32", array)], 0)
    array[:] = 1
    kept = cache.find(b"k")
    assert kept is not None and not kept[0][2].any() and not kept[0][2].flags.writeable
    cache.clear()
    cache.keep(b"k", [("y", "FP32", array)], 0)
    assert cache.find(b"k") is None and cache.nbytes == 0


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    entries = [
        Entry("kept", "1", "kept", Model("tests.serve.models:chance"), cache_bytes=1 << 20),
        Entry("plain", "1", "plain", Model("tests.serve.models:chance")),
    ]
    with Pool({entry.key: entry.model for entry in entries}, workers=1) as pool:
        running = serve(pool, entries=entries, http="127.0.0.1:0", grpc="", block=False)
        assert running is not None
        with running, Client(running.http) as client:
            client.wait_until_ready()
            yield client


def ask(client: Client, model: str, *tensors: Any) -> float:
    answer = client.infer(model, {"inputs": list(tensors), "id": "7"})
    assert answer.status == 200 and answer.json["id"] == "7", answer.body
    return float(answer.json["outputs"][0]["data"][0])


def test_the_same_request_gets_the_same_answer_and_no_other_does(client: Client) -> None:
    x = tensor("x", [1, 2])
    first = ask(client, "kept", x)
    assert ask(client, "kept", x) == first and ask(client, "plain", x) != ask(client, "plain", x)
    others = [tensor("x", [1, 3]), tensor("x", [[1, 2]]), tensor("x", [1, 2], "FP64"), tensor("x", [1, 2], "INT64"), tensor("z", [1, 2])]
    answers = [ask(client, "kept", other) for other in others]
    assert len({first, *answers}) == 1 + len(others)
    stats = client.get("/v2/models/kept/stats").json["model_stats"][0]
    assert stats["inference_stats"]["cache_hit"]["count"] == 1 and stats["inference_stats"]["cache_miss"]["count"] == 1 + len(others)
    assert stats["inference_count"] == 1 + len(others) and stats["inference_stats"]["success"]["count"] == 2 + len(others)
    assert 'rankwise_serve_cache_lookups_total{model="kept",outcome="hit",version="1"} 1.0' in client.get("/metrics").body.decode()


def test_a_model_that_was_loaded_anew_is_asked_again(client: Client) -> None:
    x = tensor("x", [5, 6])
    first = ask(client, "kept", x)
    assert client.post("/v2/repository/models/kept/load").status == 200
    assert ask(client, "kept", x) != first
