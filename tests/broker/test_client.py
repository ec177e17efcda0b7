"""A client of a queue: each future is settled once, by whatever comes first, and never left open."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("kombu")

from rankwise.broker.client import Remote, remote
from rankwise.broker.connecting import connect, task_queue
from rankwise.broker.messages import BINARY, HEADER_LENGTH, JSON, Body, Reply, write_reply
from rankwise.errors import RankwiseError, UsageError
from rankwise.findings import Finding
from rankwise.pool.errors import DeadlineExceeded, PoolClosed, PoolError, Quarantined

BROKER = "memory://"
X = np.ones((2, 3), np.float32)


def wait_for(is_so: Callable[[], Any], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


class Message:
    """What the broker brings: to a client whose connection is a real one."""

    def __init__(self, id: str, body: Body) -> None:
        self.properties, self.headers, self.body = {"correlation_id": id}, {HEADER_LENGTH: body.header_length}, body.data
        self.content_type, self.acks = body.content_type, 0

    def ack(self) -> None:
        self.acks += 1


@pytest.fixture
def client() -> Iterator[Remote]:
    with remote(BROKER, queue=f"q{uuid.uuid4().hex}") as client:
        yield client


def answer(client: Remote, id: str, content_type: str = JSON, **facts: Any) -> None:
    client._on_message(Message(id, write_reply(Reply(id, **facts), content_type, lambda raw: None)))


@pytest.mark.parametrize("content_type", [JSON, BINARY])
@pytest.mark.parametrize(
    ("structure", "given"), [("tensor", lambda y: y["a"]), ("list", lambda y: [y["a"], y["b"]]), ("dict", lambda y: y)]
)
def test_an_answer_has_the_structure_the_model_gave(client: Remote, content_type: str, structure: str, given: Any) -> None:
    outputs = {"a": X, "b": 2 * X} if structure != "tensor" else {"a": X}
    future = client.submit("m", X, id="1")

    answer(client, "1", content_type, outputs=outputs, structure=structure)

    np.testing.assert_equal(future.result(0), given(outputs))


def test_who_sent_tensors_gets_tensors(client: Remote) -> None:
    torch = pytest.importorskip("torch")
    future = client.submit("m", torch.ones(2, 3), id="1")

    answer(client, "1", outputs={"a": X})

    assert torch.equal(future.result(0), torch.ones(2, 3))


def test_the_first_answer_counts_and_one_nobody_asked_for_is_nothing(client: Remote) -> None:
    first, again = client.submit("m", X, id="1"), client.submit("m", 5 * X, id="1")
    assert again is first

    answer(client, "1", outputs={"a": X})
    answer(client, "1", outputs={"a": 7 * X})
    answer(client, "unknown", outputs={"a": X})

    assert (first.result(0) == X).all() and not client._waiting


@pytest.mark.parametrize(
    ("type", "code", "kind"), [("Quarantined", "RW803", Quarantined), ("Unheard", "RW802", PoolError), ("Unheard", "RW805", RankwiseError)]
)
def test_an_error_is_the_one_the_pool_would_have_raised(client: Remote, type: str, code: str, kind: Any) -> None:
    finding = Finding(code, "x", "error", True, "what happened")
    future = client.submit("m", X, id="1")

    answer(client, "1", error={"type": type, "finding": finding.to_dict()})

    error = future.exception(0)
    assert error.__class__ is kind and error.finding.summary == "what happened"


@pytest.mark.parametrize("body", [Body(JSON, b"{"), Body(BINARY, b"\xff" * 9, 900), Body(JSON, b'{"id": "1", "outputs": 3}')])
def test_an_answer_that_cannot_be_read_is_an_error_and_not_waited_for_again(client: Remote, body: Body) -> None:
    future = client.submit("m", X, id="1")

    message = Message("1", body)
    client._on_message(message)

    assert future.exception(0) is not None and not client._waiting and message.acks == 1


@pytest.mark.parametrize(
    ("inputs", "options"), [((), {}), ((X,), {"priority": 10}), ((X,), {"priority": -1}), ((X,), {"priority": True}), ((object(),), {})]
)
def test_what_cannot_be_sent_is_refused_and_leaves_nothing_waiting(client: Remote, inputs: Any, options: Any) -> None:
    with pytest.raises(UsageError):
        client.submit("m", *inputs, **options)

    assert not client._waiting


def test_closing_leaves_no_future_open() -> None:
    client = remote(BROKER, queue=f"q{uuid.uuid4().hex}")
    future, cancelled = client.submit("m", X), client.submit("m", X)
    cancelled.cancel()

    client.close()

    assert isinstance(future.exception(0), PoolClosed) and cancelled.cancelled()
    with pytest.raises(PoolClosed):
        client.submit("m", X)


def test_the_future_of_asyncio_gets_the_same(client: Remote) -> None:
    async def ask() -> Any:
        task = asyncio.ensure_future(client.asubmit("m", X, id="1"))
        while "1" not in client._waiting:
            await asyncio.sleep(0.001)
        answer(client, "1", outputs={"a": 3 * X})
        return await task

    assert (asyncio.run(ask()) == 3 * X).all()


def test_a_deadline_passes_also_where_there_is_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankwise.broker.client._GRACE_S", 0.2)
    with remote(BROKER, queue=f"q{uuid.uuid4().hex}") as client:
        with pytest.raises(DeadlineExceeded):
            client.submit("m", X, deadline_s=0.1).result(30)
        cancelled = client.submit("m", X)
        assert cancelled.cancel()
        wait_for(lambda: not client._waiting)


def test_without_a_worker_the_queue_does_not_fill_with_copies() -> None:
    queue = f"q{uuid.uuid4().hex}"
    with remote(BROKER, queue=queue, resend_s=1000) as client:
        client.submit("m", X)
        [waiting] = client._waiting.values()
        waiting.sent -= 1500
        wait_for(lambda: waiting.sends == 2)
        waiting.sent -= 1500
        client._resend()
        assert waiting.sends == 2  # the next one is due after twice the time
        waiting.sent -= 1500
        wait_for(lambda: waiting.sends == 3)
    with connect(BROKER) as connection:
        task = task_queue(queue)(connection.channel())
        assert len(list(iter(lambda: task.get(no_ack=True), None))) == 3


def test_a_forked_child_is_told_that_the_client_is_its_parents() -> None:
    with remote(BROKER, queue=uuid.uuid4().hex) as client:
        future = client.submit("m", X)
        with client._lock, client._sending:  # as threads that send and read may
            child = os.fork()
        if child == 0:
            signal.alarm(10)
            told = 0
            try:
                for ask in (future.result, lambda: client.submit("m", X).result()):
                    try:
                        ask()
                    except PoolClosed as error:
                        told += "another process" in str(error)
                client.close()
            finally:
                os._exit(told)

        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
        assert not future.done() and client._connection is not None
