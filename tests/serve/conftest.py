"""A server with a few models, for all tests of a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("httptools", reason="rankwise[serve] is not installed")

from rankwise.pool import Model, Pool
from rankwise.protocol import DATATYPES, TensorSpec
from rankwise.serve.http import Limits
from rankwise.serve.models_file import Entry
from rankwise.serve.serving import Serving, serve
from tests.serve.http_client import Client
from tests.warm import warm_pools

__all__ = ["warm_pools"]

HERE = "tests.serve.models"
LIMITS = Limits(body_bytes=8 << 20, head_s=1.5, body_s=1.5, write_s=5)


def entries() -> list[Entry]:
    def spec(name: str, datatype: str = "FP32", *shape: int) -> TensorSpec:
        return TensorSpec(name, datatype, shape or (-1, 4))

    echoes = [
        Entry(
            f"echo_{kind}",
            "1",
            f"echo_{kind}",
            Model(f"{HERE}:echo"),
            (spec("x", kind, -1, -1),),
            (spec("y", kind, -1, -1),),
            preload=False,
        )
        for kind in DATATYPES
        if kind != "BYTES"
    ]
    sums = Model(f"{HERE}:sums", max_batch=8)
    both = (spec("a"), spec("b"))
    return [
        *echoes,
        Entry("sums", "1", "sums", sums, both, (spec("sum"), spec("difference"))),
        Entry("derived", "1", "derived", Model(f"{HERE}:linear", max_batch=8), (spec("x"),)),
        Entry("words", "1", "words", Model(f"{HERE}:shouting"), (spec("w", "BYTES", -1),), (spec("W", "BYTES", -1),), preload=False),
        Entry("moody", "1", "moody", Model(f"{HERE}:moody"), (spec("x"),), (spec("y"),)),
        Entry("free", "1", "free", Model(f"{HERE}:moody"), preload=False),
        Entry("a b/c%", "1", "odd", Model(f"{HERE}:moody"), (spec("x"),), (spec("y"),), preload=False),
        Entry("two", "1", "two:1", Model(f"{HERE}:echo"), (spec("x"),), (spec("y"),), preload=False),
        Entry("two", "2", "two:2", Model(f"{HERE}:moody"), (spec("x"),), (spec("y"),), preload=False),
        Entry("broken", "1", "broken", Model(f"{HERE}:broken"), (spec("x"),), (spec("y"),), preload=False),
    ]


@contextmanager
def served(**options: Any) -> Iterator[Serving]:
    known = entries()
    with Pool({entry.key: entry.model for entry in known}, workers=1, max_queue=16) as pool:
        running = serve(pool, entries=known, http="127.0.0.1:0", grpc="127.0.0.1:0", block=False, limits=LIMITS, **options)
        assert running is not None
        with running:
            yield running


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    with served(front_ends=0) as running:
        yield running


@pytest.fixture(scope="module")
def client(serving: Serving) -> Iterator[Client]:
    with Client(serving.http) as client:
        client.wait_until_ready()
        yield client
