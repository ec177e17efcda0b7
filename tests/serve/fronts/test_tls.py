"""TLS behind front ends: they speak it too, to clients that trust the certificate, and to nobody else."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("requests")

import requests

from rankwise.serve.serving import Serving
from tests.serve.certificates import make_certificate
from tests.serve.fronts.conftest import behind_front_ends
from tests.serve.fronts.test_front_ends import ROW, front_ends

CLIENTS = 8


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def serving(none_kept: None, files: dict[str, str]) -> Iterator[Serving]:
    with behind_front_ends(**files) as running:
        yield running


def connected() -> list[int]:
    """How many clients each front end has."""
    return [len([one for one in own.net_connections("tcp") if one.status == "ESTABLISHED"]) for own in front_ends(os.getpid())]


@contextmanager
def trusting(certificate: str) -> Iterator[Any]:
    with requests.Session() as session:  # a connection of its own
        session.verify, session.trust_env = certificate, False  # no proxy
        yield session


def test_every_front_end_answers_over_tls(serving: Serving, files: dict[str, str]) -> None:
    with ExitStack() as stack:
        for number in range(CLIENTS):
            session = stack.enter_context(trusting(files["certificate"]))
            row = {**ROW, "data": [number, 2, 3, 4]}
            answer = session.post(f"https://{serving.http}/v2/models/moody/infer", json={"inputs": [row]}, timeout=60)
            assert answer.status_code == 200 and answer.json()["outputs"][0]["data"] == [2.0 * number, 4, 6, 8]
        assert connected() == [CLIENTS // 2] * 2


def test_a_client_that_trusts_another_certificate_breaks_off(serving: Serving, tmp_path: Path) -> None:
    other = make_certificate(tmp_path)["certificate"]
    for _ in range(2):  # one for each front end
        with trusting(other) as session, pytest.raises(requests.exceptions.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
            session.get(f"https://{serving.http}/v2", timeout=60)


def test_plain_http_gets_no_answer(serving: Serving, files: dict[str, str]) -> None:
    host, _, port = serving.http.rpartition(":")
    for _ in range(2):
        with socket.create_connection((host, int(port)), timeout=60) as client, suppress(ConnectionResetError):
            client.sendall(b"GET /v2 HTTP/1.1\r\nHost: here\r\n\r\n")
            assert b"HTTP" not in client.recv(1000)
    with trusting(files["certificate"]) as session:
        assert session.get(f"https://{serving.http}/v2", timeout=60).ok
