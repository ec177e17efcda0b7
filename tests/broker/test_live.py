"""`rankwise worker` and `rankwise.remote` with real brokers that die and come back, and workers that are killed."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import amqp
import numpy as np
import pytest
import torch

import rankwise
from rankwise.broker.connecting import connect, plain_queue
from rankwise.broker.stores import open_store
from rankwise.pool.errors import DeadlineExceeded, Quarantined
from tests.broker.conftest import DIES_WITH_ITS_FIRST_ANSWER
from tests.broker.servers import Redis
from tests.pool.models import EXIT

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]
Start = Callable[..., Any]


def test_a_queue_from_end_to_end(broker: Any, start_worker: Start, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    worker = start_worker("--files", str(files))
    with rankwise.remote(broker.url, files=files, large_bytes=100_000) as client:
        x = torch.randn(4, 8)
        assert torch.equal(client.submit("twice", x).result(120), 2 * x)
        total, count = client.submit("pair", x).result(60)
        assert torch.allclose(total, x.sum(1)) and int(count) == 4
        assert torch.equal(asyncio.run(client.asubmit("twice", x)), 2 * x)

        large = np.random.default_rng(0).random((400, 400), np.float32)
        assert (client.submit("twice", large).result(60) == 2 * large).all()
        end = time.monotonic() + 30  # both sides tidy up after the answer is given
        while list(files.iterdir()) and time.monotonic() < end:
            time.sleep(0.05)
        assert list(files.iterdir()) == []  # nothing by reference is left behind

        with pytest.raises(DeadlineExceeded):
            client.submit("slow", x, deadline_s=0.05).result(60)
        with pytest.raises(Quarantined):
            client.submit("twice", torch.full((1, 8), EXIT)).result(120)
        with pytest.raises(rankwise.RankwiseError, match="no model 'nobody'"):
            client.submit("nobody", x).result(60)
        codes = sorted(json.loads(message.headers["rankwise-finding"])["code"] for message in dead_letters(broker.url))
        assert codes == ["RW001", "RW804"]

        running = [client.submit("slow", x) for _ in range(3)]
        time.sleep(1)
        worker.send_signal(signal.SIGTERM)  # finishes what it has
        assert all(torch.equal(future.result(60), x) for future in running)
        assert worker.wait(60) == 0


def test_every_kind_of_tensor_comes_back_exact(broker: Any, start_worker: Start) -> None:
    start_worker()
    halves = torch.randn(3, 5).to(torch.bfloat16)
    texts = np.array([[b"a\x00\xff"], ["\u00e9t\u00e9".encode()], [b""]], object)
    for content_type in ("application/octet-stream", "application/json"):
        with rankwise.remote(broker.url, content_type=content_type) as client:
            back = client.submit("half", halves).result(120)
            assert back.dtype == torch.bfloat16 and torch.equal(back, halves)
            assert (client.submit("shout", texts).result(60) == np.array([[b"A\x00\xff"], ["\u00e9T\u00e9".encode()], [b""]], object)).all()
            assert client.submit("shout", "text").result(60).item() == b"TEXT"


def test_large_tensors_by_reference_in_redis(kind: Any, broker: Any, start_worker: Start) -> None:
    if kind is not Redis:
        pytest.skip("RabbitMQ has no keys; by file is tried above")
    start_worker()
    redis = open_store(broker.url, "q", 60).redis  # type: ignore[attr-defined]
    large = np.random.default_rng(0).random((600, 600), np.float32)
    with rankwise.remote(broker.url) as client:
        waiting = client.submit("twice", large)
        [body] = [it.body for it in client._waiting.values()]
        assert b"redis:rankwise:blob:" in body.data and len(body.data) < 1000
        assert (waiting.result(120) == 2 * large).all()
        end = time.monotonic() + 30
        while (left := redis.keys("rankwise:blob:*")) and time.monotonic() < end:
            time.sleep(0.05)
        assert left == []


def test_an_answer_that_was_stored_before_its_worker_died_is_given_and_not_worked_out_again(
    broker: Any, start_worker: Start, tmp_path: Path
) -> None:
    first = start_worker(program=("-c", DIES_WITH_ITS_FIRST_ANSWER))
    with rankwise.remote(broker.url, resend_s=600) as client:  # so it is the broker that delivers it again
        future = client.submit("noted", np.full((1, 2), 7, np.float32))
        assert first.wait(120) == 9
        start_worker()
        assert (future.result(120) == 14).all()
    [runs] = tmp_path.glob("runs-*")
    assert len(runs.read_text().splitlines()) == 1


def test_what_a_worker_has_is_run_by_another_only_if_that_one_dies(broker: Any, start_worker: Start, tmp_path: Path) -> None:
    def runs() -> int:
        return sum(len(path.read_text().splitlines()) for path in tmp_path.glob("runs-*"))

    workers = [start_worker("--prefetch", "1") for _ in range(2)]
    wait_for(lambda: all("reading from" in (tmp_path / f"worker-{i}.log").read_text() for i in range(2)))
    with rankwise.remote(broker.url, resend_s=0.5) as client:
        future = client.submit("long", np.full((1, 2), 7, np.float32))  # its copies come to the one that is free
        assert (future.result(120) == 14).all() and runs() == 1

        future = client.submit("long", np.full((1, 2), 8, np.float32))
        wait_for(lambda: runs() == 2)
        for worker in workers:
            worker.kill()
        start_worker()
        assert (future.result(120) == 16).all() and runs() == 3


def wait_for(is_so: Callable[[], bool], limit_s: float = 120) -> None:
    end = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_message_by_hand_is_answered(kind: Any, broker: Any, start_worker: Start) -> None:
    """As another language would write it, with nothing of ours, and nothing of kombu's."""
    start_worker()
    body = json.dumps(
        {"id": "by-hand-1", "model": "twice", "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": "AACAPwAAAEA="}]}
    )
    if kind is Redis:
        envelope = {"body": body, "content-type": "application/json", "properties": {"reply_to": "mine", "correlation_id": "by-hand-1"}}
        redis_cli(broker, "LPUSH", "rankwise.tasks", json.dumps(envelope))
        _, said = redis_cli(broker, "--json", "BRPOP", "mine", "120")
        envelope = json.loads(said)
        assert envelope["properties"]["correlation_id"] == "by-hand-1"
        answer = base64.b64decode(envelope["body"])
    else:
        with amqp.Connection(f"127.0.0.1:{broker.port}") as connection:
            channel, found = connection.channel(), []
            channel.queue_declare("mine", auto_delete=False)
            channel.queue_declare("rankwise.tasks", durable=True, auto_delete=False, arguments={"x-max-priority": 9})
            channel.basic_publish(amqp.Message(body, content_type="application/json", reply_to="mine"), routing_key="rankwise.tasks")
            channel.basic_consume("mine", callback=found.append, no_ack=True)
            while not found:
                connection.drain_events(timeout=120)
        assert found[0].properties["correlation_id"] == "by-hand-1"
        answer = found[0].body
    [output] = json.loads(answer)["outputs"]
    assert output == {
        "name": "output",
        "datatype": "FP32",
        "shape": [1, 2],
        "data": base64.b64encode(np.float32([2, 4]).tobytes()).decode(),
    }


def redis_cli(broker: Any, *words: str) -> Any:
    done = subprocess.run(["redis-cli", "-p", str(broker.port), *words], capture_output=True, text=True, timeout=130, check=True)
    return json.loads(done.stdout)


def test_nothing_is_lost_and_nothing_answered_twice_when_brokers_and_workers_die(broker: Any, start_worker: Start) -> None:
    workers = [start_worker("--prefetch", "16"), start_worker("--prefetch", "16")]
    answers: dict[int, int] = {}
    with rankwise.remote(broker.url, resend_s=15) as client:
        client.submit("twice", torch.zeros(1, 1)).result(120)

        def send(number: int) -> Any:
            future = client.submit("twice", np.full((1, 4), number, np.float32))
            future.add_done_callback(lambda done: answers.__setitem__(number, answers.get(number, 0) + 1))
            return future

        futures = [send(number) for number in range(200)]
        workers[0].kill()
        futures += [send(number) for number in range(200, 400)]
        broker.kill()
        broker.start()
        futures += [send(number) for number in range(400, 600)]
        workers[0] = start_worker("--prefetch", "16")
        for number, future in enumerate(futures):
            assert (future.result(200) == 2 * number).all()
    assert answers == dict.fromkeys(range(600), 1)


def test_urgent_tasks_come_first(broker: Any, start_worker: Start) -> None:
    order: list[str] = []
    with rankwise.remote(broker.url) as client:
        futures = []
        for kind, priority in [("low", 0)] * 4 + [("high", 9)] * 2:
            future = client.submit("slow", np.ones((1, 1), np.float32), priority=priority)
            future.add_done_callback(lambda done, kind=kind: order.append(kind))
            futures.append(future)
        start_worker("--prefetch", "1")
        for future in futures:
            future.result(120)
    assert order[:2] == ["high", "high"]


def dead_letters(url: str) -> list[Any]:
    with connect(url) as connection:
        queue = plain_queue("rankwise.tasks.dead")(connection.channel())
        found = []
        while (message := queue.get(no_ack=True)) is not None:
            found.append(message)
        return found


def test_a_worker_that_is_told_to_leave_while_the_broker_is_away_says_what_it_leaves(
    broker: Any, start_worker: Start, tmp_path: Path
) -> None:
    worker = start_worker("--drain", "8", "--prefetch", "2")
    with rankwise.remote(broker.url, resend_s=600) as client:
        client.submit("twice", np.ones(1)).result(120)
        futures = [client.submit("slow", np.full(1, number)) for number in range(4)]
        futures[0].result(60)  # so the next ones are in its hands
        broker.kill()
        worker.send_signal(signal.SIGTERM)
        told = time.monotonic()
        assert worker.wait(timeout=60) == 0
        assert time.monotonic() - told < 30  # 8 s, on a machine that has other things to do
        assert "more are left to the broker" in (tmp_path / "worker-0.log").read_text()
        broker.start()
        start_worker()
        assert [float(future.result(120)[0]) for future in futures] == [0, 1, 2, 3]
