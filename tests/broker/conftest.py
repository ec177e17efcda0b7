"""A broker that tests may kill and start again, and workers as users start them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kombu")
from tests.broker.servers import RabbitMQ, Redis, is_installed

ROOT = Path(__file__).parents[2]
MODELS = """
[models.twice]
build = "tests.pool.models:Moody"
[models.slow]
build = "tests.broker.models:Slow"
[models.pair]
build = "tests.broker.models:pair"
outputs = [{ name = "sum", datatype = "FP32", shape = [-1] }, { name = "count", datatype = "INT64", shape = [] }]
[pool]
workers = 1
"""


@pytest.fixture(params=[Redis, RabbitMQ], ids=["redis", "rabbitmq"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def broker(kind: Any, leaves_nothing_behind: str) -> Iterator[Any]:
    if not is_installed(kind):
        pytest.skip(f"{kind.program} is not installed")
    folder = Path(tempfile.mkdtemp(prefix="rw-broker-"))
    server = kind(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def start_worker(broker: Any, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """`rankwise worker` with the models above; all share a folder of results, or Redis."""
    (tmp_path / "MODELS.toml").write_text(MODELS)
    started: list[subprocess.Popen[bytes]] = []

    def start(*more: str) -> subprocess.Popen[bytes]:
        place = ["--results", str(tmp_path / "results")] if broker.url.startswith("amqp") else []
        command = [sys.executable, "-m", "rankwise", "worker", str(tmp_path / "MODELS.toml"), "--broker", broker.url, *place, *more]
        with open(tmp_path / f"worker-{len(started)}.log", "wb") as log:
            started.append(subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=os.environ))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
