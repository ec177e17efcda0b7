"""`rankwise worker` and `rankwise.remote` with real brokers that die and come back, and workers that are killed."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rankwise
from rankwise.broker.connecting import connect, plain_queue
from rankwise.pool.errors import DeadlineExceeded, Quarantined
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


def test_a_worker_that_is_told_to_leave_while_the_broker_is_away_leaves(broker: Any, start_worker: Start) -> None:
    worker = start_worker()
    with rankwise.remote(broker.url) as client:
        client.submit("twice", np.ones(1)).result(60)
        client.submit("slow", np.ones(1))
        broker.kill()
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=45) == 0
        broker.start()
