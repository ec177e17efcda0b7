"""A broker that tests may kill and start again, and workers as users start them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kombu")
from tests.broker.servers import RabbitMQ, Redis, running

ROOT = Path(__file__).parents[2]
MODELS = """
[models.twice]
build = "tests.pool.models:Moody"
[models.slow]
build = "tests.broker.models:Slow"
[models.pair]
build = "tests.broker.models:pair"
outputs = [{ name = "sum", datatype = "FP32", shape = [-1] }, { name = "count", datatype = "INT64", shape = [] }]
[models.half]
build = "torch.nn:Identity"
outputs = [{ name = "y", datatype = "BF16", shape = [-1, -1] }]
[models.shout]
build = "tests.broker.models:shout"
[models.noted]
build = "tests.broker.models:Noted"
args = ["runs"]
[models.long]
build = "tests.broker.models:Noted"
args = ["runs", 4.0]
[pool]
workers = 1
"""
# A worker that dies at the worst moment: its answer is stored, and nobody has been told.
DIES_WITH_ITS_FIRST_ANSWER = """
import os, sys
from rankwise.broker import stores
from rankwise.cli.main import main

for store in (stores.RedisStore, stores.FolderStore):
    def put_and_die(self, id, data, put=store.put):
        put(self, id, data)
        os._exit(9)
    store.put = put_and_die
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def memory_is_looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """kombu's broker in memory, which only tests use, looks for messages once a second."""
    monkeypatch.setattr("kombu.transport.memory.Transport.polling_interval", 0.01)


@pytest.fixture(params=[Redis, RabbitMQ], ids=["redis", "rabbitmq"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def broker(kind: Any, leaves_nothing_behind: str) -> Iterator[Any]:
    with running(kind) as server:
        yield server


@pytest.fixture
def start_worker(broker: Any, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """`rankwise worker` with the models above; all share a folder of results, or Redis."""
    (tmp_path / "MODELS.toml").write_text(MODELS.replace('"runs"', json.dumps(str(tmp_path / "runs"))))
    started: list[subprocess.Popen[bytes]] = []

    def start(*more: str, program: tuple[str, ...] = ("-m", "rankwise")) -> subprocess.Popen[bytes]:
        place = ["--results", str(tmp_path / "results")] if broker.url.startswith("amqp") else []
        command = [sys.executable, *program, "worker", str(tmp_path / "MODELS.toml"), "--broker", broker.url, *place, *more]
        with open(tmp_path / f"worker-{len(started)}.log", "wb") as log:
            started.append(subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=os.environ))
        return started[-1]

    yield start
    for process in started:
        process.terminate()
    for process in started:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
