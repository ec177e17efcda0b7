"""A message is answered once: whatever is delivered twice, killed, late or wrong."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rankwise.broker.blobs import Blobs
from rankwise.broker.client import Remote, remote
from rankwise.broker.connecting import body_of, connect, plain_queue, publish, task_queue
from rankwise.broker.consumer import MAX_TRIES, BrokerWorker, WorkerOptions, pack_body
from rankwise.broker.messages import JSON, Body, Reply, Request, write_reply, write_request
from rankwise.broker.stores import FolderStore
from rankwise.errors import RankwiseError
from rankwise.pool.errors import DeadlineExceeded, Death, quarantined

BROKER = "memory://"
X = np.ones((2, 3), np.float32)


class Counting:
    """A pool that doubles its input and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.open: list[Future[Any]] | None = None  # answered later

    def submit(self, model: str, *inputs: Any, deadline_s: float | None = None, priority: int = 0, seed: int | None = None) -> Future[Any]:
        self.asked.append(inputs)
        future: Future[Any] = Future()
        if model == "killer":
            future.set_exception(quarantined(model, "x", 2, Death(3)))
        elif model == "raises":
            future.set_exception(ValueError("what the model says"))
        elif self.open is not None:
            self.open.append(future)
        else:
            future.set_result(2 * inputs[0])
        return future


class Running:
    def __init__(self, folder: Path, queue: str = "", prefetch: int = 8) -> None:
        self.queue, self.pool = queue or f"q{uuid.uuid4().hex}", Counting()
        self.store = FolderStore(folder, self.queue, 60)
        self.worker = BrokerWorker(self.pool, self.store, Blobs(), WorkerOptions(BROKER, self.queue, prefetch))
        self.thread = threading.Thread(target=self.worker.run)
        self.thread.start()

    def client(self, **options: Any) -> Remote:
        return remote(BROKER, queue=self.queue, **options)

    def publish(self, body: Body, reply_to: str = "", id: str = "") -> None:
        with connect(BROKER) as connection:
            producer = connection.Producer()
            task_queue(self.queue)(producer.channel).declare()
            publish(producer, body, self.queue, reply_to=reply_to or None, correlation_id=id)

    def read(self, name: str) -> list[Any]:
        with connect(BROKER) as connection:
            queue = plain_queue(name)(connection.channel())
            queue.declare()
            found = []
            while (message := queue.get(no_ack=True)) is not None:
                found.append(message)
            return found


@pytest.fixture(autouse=True)
def idle_workers_look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test ends its worker, which sees that it is to leave once it has waited for a message."""
    monkeypatch.setattr("rankwise.broker.consumer._IDLE_S", 0.02)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    started = Running(tmp_path)
    yield started
    started.worker.stop()
    started.thread.join(20)
    assert not started.thread.is_alive()


def wait_for(look: Any, limit_s: float = 20) -> Any:
    end = time.monotonic() + limit_s
    while not (found := look()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def test_a_result_comes_back_of_the_kind_that_was_sent(running: Running) -> None:
    torch = pytest.importorskip("torch")
    with running.client() as client:
        assert (client.submit("m", X).result(20) == 2 * X).all()
        assert torch.equal(client.submit("m", torch.ones(2)).result(20), torch.full((2,), 2.0))
    with running.client(content_type=JSON) as client:
        assert (client.submit("m", X).result(20) == 2 * X).all()


def test_the_same_id_runs_once_and_is_answered_each_time(running: Running) -> None:
    with running.client() as one, running.client() as two:
        assert (one.submit("m", X, id="same").result(20) == 2).all()
        assert (two.submit("m", X, id="same", deadline_s=60).result(20) == 2).all()
    assert len(running.pool.asked) == 1


def test_the_same_id_with_something_else_is_not_answered_with_the_first_answer(running: Running) -> None:
    others: list[dict[str, Any]] = [
        {"inputs": (5 * X,)},
        {"inputs": (X.astype(np.float64),)},
        {"model": "n"},
        {"seed": 1},
        {"inputs": (X.T,)},
    ]
    with running.client() as client:
        assert (client.submit("m", X, id="same").result(20) == 2).all()
        running.pool.open = []
        runs = client.submit("m", X, id="runs")
        wait_for(lambda: running.pool.open)
        for used in ("same", "runs"):
            for other in others:
                request = replace(Request(used, "m", (X,)), **other)
                running.publish(write_request(request, JSON, lambda raw: None), reply_to="others", id=used)
                [answer] = wait_for(lambda: running.read("others"))
                assert "has been used" in json.loads(body_of(answer).data)["error"]["finding"]["summary"]
        running.pool.open[0].set_result(3 * X)
        assert (runs.result(20) == 3).all()
        assert (client.submit("m", X, id="runs").result(20) == 3).all()
    assert len(running.pool.asked) == 2
    assert len(running.read(f"{running.queue}.dead")) == 2 * len(others)


def test_each_malformed_message_has_its_own_finding(running: Running) -> None:
    """Also where it bears an id that was used, or that is used for a good one afterwards."""
    good = write_request(Request("a", "m", (X,)), JSON, lambda raw: None)
    for body, told in ((Body(JSON, b"{"), "JSON"), (Body(JSON, b'{"id": "a"}'), "a list of inputs"), (good, "outputs")):
        running.publish(body, reply_to="answers-a", id="a")
        [answer] = wait_for(lambda: running.read("answers-a"))
        assert told in body_of(answer).data.decode()
    assert len(running.read(f"{running.queue}.dead")) == 2


def test_a_malformed_message_without_a_correlation_id_is_answered_under_the_id_in_it(running: Running) -> None:
    running.publish(Body(JSON, b'{"id": "mine", "model": "mlp"}'), "replies-by-id")
    [message] = wait_for(lambda: running.read("replies-by-id"))
    assert json.loads(message.body)["id"] == "mine" == message.properties["correlation_id"]


def test_the_character_set_that_json_has_may_be_named(running: Running) -> None:
    request = json.loads(write_request(Request("charset", "mlp", (np.ones((1, 2), np.float32),)), JSON, lambda raw: None).data)
    running.publish(Body("application/json; charset=UTF-8", json.dumps(request).encode()), "replies-charset")
    [message] = wait_for(lambda: running.read("replies-charset"))
    assert "outputs" in json.loads(message.body)


def test_what_comes_after_its_deadline_is_told_how_late_it_is(running: Running) -> None:
    request = replace(Request("late", "mlp", (np.ones((1, 2), np.float32),)), deadline=time.time() - 3600)
    running.publish(write_request(request, JSON, lambda raw: None), "replies-late")
    [message] = wait_for(lambda: running.read("replies-late"))
    assert "came 3,600" in json.loads(message.body)["error"]["finding"]["summary"]


def test_an_id_whose_answer_was_stored_before_a_worker_died_is_not_run_again(running: Running) -> None:
    stored = write_reply(Reply("a", {"output": 7 * X}), JSON, lambda raw: None)
    running.store.put("a", pack_body(stored))
    running.publish(write_request(Request("a", "m", (X,)), JSON, lambda raw: None), reply_to="answers-7")
    [answer] = wait_for(lambda: running.read("answers-7"))
    assert body_of(answer).data == stored.data and not running.pool.asked


def test_a_message_that_comes_while_its_task_runs_joins_it(running: Running) -> None:
    running.pool.open = []
    with running.client() as one, running.client() as two:
        first, second = one.submit("m", X, id="a"), two.submit("m", X, id="a")
        wait_for(lambda: running.worker._jobs and len(running.worker._jobs["a"].messages) == 2)
        running.pool.open[0].set_result(X)
        assert (first.result(20) == X).all() and (second.result(20) == X).all()
    assert len(running.pool.asked) == 1


def test_what_was_not_answered_before_the_connection_broke_is_sent_again(running: Running) -> None:
    running.pool.open = []
    with running.client(resend_s=0.3) as client:
        future = client.submit("m", X)
        wait_for(lambda: [job for job in list(running.worker._jobs.values()) if len(job.messages) > 1])
        running.pool.open[0].set_result(X)
        assert (future.result(20) == X).all()
    assert len(running.pool.asked) == 1


def test_a_deadline_that_has_passed_is_not_run(running: Running) -> None:
    with running.client() as client, pytest.raises(DeadlineExceeded):
        client.submit("m", X, deadline_s=-1).result(20)
    assert not running.pool.asked


def test_the_models_own_exception_is_told_and_no_poison(running: Running) -> None:
    with running.client() as client, pytest.raises(RankwiseError, match="ValueError: what the model says"):
        client.submit("raises", X).result(20)
    assert running.read(f"{running.queue}.dead") == []


def test_an_input_that_kills_workers_goes_to_the_dead_letters_with_its_finding(running: Running) -> None:
    with running.client() as client, pytest.raises(RankwiseError, match="RW804"):
        client.submit("killer", X).result(20)
    [dead] = running.read(f"{running.queue}.dead")
    assert json.loads(dead.headers["rankwise-finding"])["code"] == "RW804"


@pytest.mark.parametrize("body", [Body(JSON, b"{"), Body(JSON, b'{"id": "x"}'), Body("application/x-python-serialize", b"\x80\x04N.")])
def test_a_malformed_message_goes_to_the_dead_letters_as_it_was(running: Running, body: Body) -> None:
    running.publish(body)
    [dead] = wait_for(lambda: running.read(f"{running.queue}.dead"))
    assert body_of(dead).data == body.data and dead.content_type == body.content_type
    assert json.loads(dead.headers["rankwise-finding"])["code"] == "RW001"
    assert not running.pool.asked


def test_a_message_that_ended_ten_workers_is_not_tried_again(running: Running) -> None:
    for _ in range(MAX_TRIES):
        running.store.count_try("bad")

    running.worker._on_message(redelivered("bad"))
    [answer] = wait_for(lambda: running.read("answers"))
    assert "RW804" in body_of(answer).data.decode() and not running.pool.asked


def test_what_comes_again_is_run_where_nobody_has_it(running: Running) -> None:
    running.worker._on_message(redelivered("c"))
    [answer] = wait_for(lambda: running.read("answers"))
    assert b"outputs" in body_of(answer).data and len(running.pool.asked) == 1


@pytest.fixture
def held(running: Running, tmp_path: Path) -> FolderStore:
    """Of another worker, which has task "d"; the message of it has come here again, and waits."""
    other = FolderStore(tmp_path, running.queue, 60)
    assert other.claim("d") is True
    running.worker._on_message(redelivered("d"))
    wait_for(lambda: running.worker._later)
    return other


def test_what_another_worker_has_waits_for_its_answer(running: Running, held: FolderStore) -> None:
    stored = write_reply(Reply("d", {"output": 7 * X}), JSON, lambda raw: None)
    held.put("d", pack_body(stored))
    [answer] = wait_for(lambda: running.read("answers"))
    assert body_of(answer).data == stored.data and not running.pool.asked


def test_what_another_worker_has_is_run_when_that_one_is_dead(running: Running, held: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    first = running.worker._later[0][0]
    wait_for(lambda: running.worker._later[0][0] > first)  # it was looked at once more
    assert not running.pool.asked
    monkeypatch.setattr("rankwise.broker.stores.CLAIM_S", 0.5)  # and nobody signs for it
    [answer] = wait_for(lambda: running.read("answers"))
    assert b"outputs" in body_of(answer).data and len(running.pool.asked) == 1


def test_what_another_worker_has_keeps_nobody_from_leaving(running: Running, held: FolderStore) -> None:
    running.worker.stop()
    running.thread.join(10)  # the time to drain is 30 s
    assert not running.thread.is_alive() and not running.pool.asked


def test_a_worker_that_leaves_frees_what_it_could_not_finish(tmp_path: Path) -> None:
    running = Running(tmp_path)
    running.pool.open = []
    running.publish(write_request(Request("e", "m", (X,)), JSON, lambda raw: None))
    wait_for(lambda: running.pool.open)
    other = FolderStore(tmp_path, running.queue, 60)
    assert other.claim("e") is False
    running.worker._options = replace(running.worker._options, drain_s=0.1)
    running.worker.stop()
    running.thread.join(20)
    assert other.claim("e") is True


def test_a_message_sent_again_while_another_worker_has_the_first_is_not_run(tmp_path: Path) -> None:
    """With the client that sends it again, and two workers that take one message each."""
    one = Running(tmp_path, prefetch=1)
    two = Running(tmp_path, one.queue, prefetch=1)
    both = (one, two)
    for running in both:
        running.pool.open = []
    try:
        with one.client(resend_s=0.2) as client:
            future = client.submit("m", X)
            wait_for(lambda: one.worker._later or two.worker._later, 60)
            [running] = [running for running in both if running.pool.open]
            running.pool.open[0].set_result(X)
            assert (future.result(20) == X).all()
            assert len(one.pool.asked + two.pool.asked) == 1
    finally:
        for running in both:
            running.worker.stop()
        for running in both:
            running.thread.join(20)


def redelivered(id: str) -> Any:
    return SimpleNamespace(
        properties={"reply_to": "answers", "correlation_id": id}, headers={}, content_type=JSON, delivery_tag="1",
        delivery_info={"redelivered": True}, body=write_request(Request(id, "m", (X,)), JSON, lambda raw: None).data, ack=lambda: None,
    )  # fmt: skip


def test_what_runs_is_finished_before_a_worker_leaves(tmp_path: Path) -> None:
    running = Running(tmp_path)
    running.pool.open = []
    with running.client() as client:
        future = client.submit("m", X)
        wait_for(lambda: running.pool.open)
        running.worker.stop()
        time.sleep(0.2)
        assert running.thread.is_alive()
        running.pool.open[0].set_result(X)
        assert (future.result(20) == X).all()
        running.thread.join(20)
        assert not running.thread.is_alive()


def test_an_answer_that_cannot_be_sent_does_not_hold_its_id(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankwise.broker.consumer._SEND_TRIES", 1)
    put, failures = running.store.put, [OSError("the disk is full")]

    def fails_once(id: str, data: bytes) -> bytes:
        if failures:
            raise failures.pop()
        return put(id, data)

    monkeypatch.setattr(running.store, "put", fails_once)
    with running.client(resend_s=1) as client:
        assert (client.submit("m", X).result(30) == 2 * X).all()
    assert len(running.pool.asked) == 2
