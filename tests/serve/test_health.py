"""Ready means that requests are answered."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("httptools")

from rankwise.pool import Model, Pool
from rankwise.serve.serving import serve
from tests.serve.http_client import Client, tensor


def test_a_server_whose_pool_was_closed_is_not_ready_and_answers_all_who_ask() -> None:
    pool = Pool({"double": Model("tests.pool.transport.test_listener:double")}, workers=1)
    with serve(pool, http="127.0.0.1:0", grpc="", block=False) as serving:
        with Client(serving.http) as client:
            client.wait_until_ready()
        pool.close()
        clients = [Client(serving.http) for _ in range(12)]
        for client in clients:
            assert client.get("/v2/health/ready").error == "the pool is closed"
            assert client.infer("double", {"inputs": [tensor("x", [1.0])]}).status == 503
        for client in clients:
            client.__exit__()
