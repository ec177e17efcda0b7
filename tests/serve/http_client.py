"""A plain HTTP client for tests: the standard library's, with bodies as the protocol has them."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """What went wrong; fails where the body is not exactly that."""
        said = self.json
        assert list(said) == ["error"] and isinstance(said["error"], str) and "Traceback" not in said["error"], said
        return str(said["error"])


class Client:
    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=60)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The next request connects anew."""
        self._connection.close()

    def ask(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Answer:
        self._connection.request(method, path, body, headers or {})
        response = self._connection.getresponse()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())

    def get(self, path: str) -> Answer:
        return self.ask("GET", path)

    def post(self, path: str, said: Any = None, headers: dict[str, str] | None = None, raw: bytes = b"") -> Answer:
        """JSON, or nothing; with `raw`, tensors behind it."""
        body = b"" if said is None else json.dumps(said).encode()
        sent = dict(headers or {})
        if raw:
            sent["Inference-Header-Content-Length"] = str(len(body))
        return self.ask("POST", path, body + raw, sent)

    def infer(self, model: str, said: Any, headers: dict[str, str] | None = None, raw: bytes = b"") -> Answer:
        return self.post(f"/v2/models/{quote(model, safe='')}/infer", said, headers, raw)

    def wait_until_ready(self) -> None:
        end = time.monotonic() + 60
        while self.get("/v2/health/ready").status != 200:
            assert time.monotonic() < end, self.get("/v2/health/ready").error
            time.sleep(0.05)


def tensor(name: str, array: Any, datatype: str = "FP32", **more: Any) -> dict[str, Any]:
    array = np.asarray(array)
    return {"name": name, "shape": list(array.shape), "datatype": datatype, "data": array.ravel().tolist(), **more}


def binary(name: str, shape: list[int], datatype: str, size: int) -> dict[str, Any]:
    return {"name": name, "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": size}}
