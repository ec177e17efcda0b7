"""`serve` from Python: what it is told, where it listens, and that it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("httptools")

from rankwise.errors import UsageError
from rankwise.pool import Model, Pool
from rankwise.protocol import TensorSpec
from rankwise.serve.serving import serve
from tests.ports import free_port
from tests.serve.http_client import Client


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool({"echo": Model("tests.serve.models:echo")}, workers=0) as pool:
        yield pool


def test_tensors_are_declared_in_either_form(pool: Pool) -> None:
    said: dict[str, Any] = {"inputs": {"echo": [("x", "FP32", [-1, 4])]}, "outputs": {"echo": [TensorSpec("y", "FP32", (-1, 4))]}}

    with serve(pool, http="127.0.0.1:0", grpc="", block=False, **said) as serving, Client(serving.http) as client:
        shown = client.get("/v2/models/echo").json
        with pytest.raises(UsageError, match="does not listen there"):
            assert serving.grpc

    assert (shown["inputs"], shown["outputs"]) == (
        [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}],
    )
    assert not [thread for thread in threading.enumerate() if thread.name == "rankwise-serve"], "it has ended, and the pool has not"
    assert "echo" in pool.models


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"htttp": ":0"}, "no option 'htttp'"),
        ({"inputs": {"echo": ["x"]}}, "'x' does not describe a tensor"),
        ({"inputs": {"echo": [("x", "FP32")]}}, "does not describe a tensor"),
        ({"inputs": {"echo": [("x", "FP32", 3)]}}, "does not describe a tensor"),
        ({"http": "nowhere"}, "is not an address"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_listens(pool: Pool, options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        serve(pool, block=False, **options)


def test_a_port_that_is_taken_is_told_to_the_caller(pool: Pool) -> None:
    address = f"127.0.0.1:{free_port()}"
    with serve(pool, http=address, grpc="", block=False), pytest.raises((UsageError, OSError), match=address.split(":")[1]):
        serve(pool, http=address, grpc="", block=False)
