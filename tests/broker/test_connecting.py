"""Brokers that cannot be had: a finding, and no password in it."""

from __future__ import annotations

import logging
import socket
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import rankwise
from rankwise.broker.blobs import Blobs
from rankwise.broker.connecting import connect
from rankwise.broker.consumer import BrokerWorker, WorkerOptions
from rankwise.broker.stores import FolderStore
from rankwise.errors import UsageError


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_a_broker_that_cannot_be_reached_is_a_finding(scheme: str, free_port: int) -> None:
    with pytest.raises(UsageError, match=rf"the broker {scheme}://127\.0\.0\.1:{free_port} cannot be reached") as told:
        rankwise.remote(f"{scheme}://user:hush@127.0.0.1:{free_port}/0")
    assert "hush" not in str(told.value)


@pytest.mark.parametrize("address", ["user:hush@127.0.0.1:1", "redis://:hu/hush@127.0.0.1:1/0", "amqp://user:hu?hush@127.0.0.1:1//"])
def test_an_address_that_cannot_be_read_is_told_without_its_password(address: str) -> None:
    with pytest.raises(UsageError) as told:
        rankwise.remote(address)
    assert "hu" not in str(told.value)


@pytest.mark.parametrize("address", ["kafka://localhost:1", "nothing://localhost"])
def test_what_is_no_broker_says_what_would_be(address: str) -> None:
    with pytest.raises(UsageError, match=r"is not a broker that can be used here[\s\S]*redis://HOST:6379/0"):
        connect(address)


def test_a_worker_says_once_why_its_broker_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kombu.utils.functional.sleep", lambda seconds: time.sleep(min(seconds, 0.01)))  # between two tries
    with socket.create_server(("127.0.0.1", 0)) as listening, caplog.at_level(logging.WARNING, "rankwise.worker"):
        listening.settimeout(20)
        options = WorkerOptions(f"amqp://user:hush@127.0.0.1:{listening.getsockname()[1]}//", "q")
        worker = BrokerWorker(Nobody(), FolderStore(tmp_path, "q", 60), Blobs(), options)
        thread = threading.Thread(target=worker.run)
        thread.start()
        for _ in range(6):  # each try is hung up upon, which may come as two kinds of errors in turn
            listening.accept()[0].close()
        told = [record.getMessage() for record in caplog.records]
        worker.stop()
        while thread.is_alive():
            try:
                listening.settimeout(0.1)
                listening.accept()[0].close()
            except TimeoutError:
                pass
    assert told and len(told) == len(set(told))
    assert all(text.startswith("the broker cannot be reached, trying again: ") and "hush" not in text for text in told)


class Nobody:
    """A pool that is never asked."""

    def submit(self, model: str, *inputs: Any, **options: Any) -> Future[Any]:
        raise AssertionError
