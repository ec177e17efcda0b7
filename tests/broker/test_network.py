"""The link between a broker and a worker, or a client, swallows everything for longer than a heartbeat, under load, and comes back."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.servers import Place, running
from tests.lab.faults import firewall, why_no_nft
from tests.lab.hosts import Host, lab, why_no_lab

ROOT = Path(__file__).parents[2]
TASKS, CUT_S = 3000, 40
pytestmark = [pytest.mark.live, pytest.mark.netns, pytest.mark.timeout(400)]

CLIENT = """
import json, sys, threading, time
import numpy as np
import rankwise

url, path, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
room, answers = threading.Semaphore(200), open(path, "a", buffering=1)

def done(number, future):
    is_right = future.exception() is None and (future.result() == 2 * number).all()
    print(json.dumps([number, time.time(), bool(is_right)]), file=answers)
    room.release()

with rankwise.remote(url, resend_s=20) as client:
    futures = []
    for number in range(count):
        room.acquire()
        futures.append(client.submit("noted", np.full((1, 2), number, np.float32)))
        futures[-1].add_done_callback(lambda future, number=number: done(number, future))
        time.sleep(0.02)
    for future in futures:
        future.exception(200)
"""


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    if why := why_no_lab() or why_no_nft():
        pytest.skip(why)
    with lab(4) as made:
        yield made


@contextlib.contextmanager
def no_link(one: Host, other: Host) -> Iterator[None]:
    """Packets vanish on both ends; nobody is told."""
    with firewall(one, f"ip saddr {other.address} drop"), firewall(other, f"ip saddr {one.address} drop"):
        yield


def test_a_cut_link_loses_nothing_and_answers_nothing_twice(kind: Any, hosts: list[Host], tmp_path: Path) -> None:
    at_broker, *at_workers, at_client = hosts
    with running(kind, Place(at_broker.address, ("ip", "netns", "exec", at_broker.namespace))) as broker:
        workers = [start_worker(host, broker.url, tmp_path) for host in at_workers]
        with open(tmp_path / "client.log", "wb") as log:
            client = at_client.start([sys.executable, "-c", CLIENT, broker.url, tmp_path / "answers", str(TASKS)], output=log, cwd=ROOT)
        wait_for_answers(tmp_path, 200)
        for cut_off in (at_workers[0], at_client):
            with no_link(cut_off, at_broker):
                before = len(answers(tmp_path))
                time.sleep(CUT_S)
                if cut_off is not at_client:
                    assert len(answers(tmp_path)) > before, "the other worker does not go on"
            wait_for_answers(tmp_path, len(answers(tmp_path)) + 200)
        assert client.wait(200) == 0, (tmp_path / "client.log").read_text()[-2000:]
        for worker in workers:
            worker.terminate()
            assert worker.wait(60) == 0
    found = answers(tmp_path)
    assert sorted(number for number, _, _ in found) == list(range(TASKS)) and all(is_right for _, _, is_right in found)
    when = {number: at for number, at, _ in found}
    runs = {host.name: [line.split() for line in (tmp_path / f"runs-{host.name}").read_text().splitlines()] for host in at_workers}
    assert not [number for done in runs.values() for number, at in done if float(at) > when[int(number)]], "run although it was answered"
    assert len(runs["node-b"]) > TASKS / 10, "who was cut off does not take part again"
    assert sum(map(len, runs.values())) - TASKS <= 2 * 16 * 2  # what the one who was cut off had in its hands, each time
    print(f"{sum(map(len, runs.values())) - TASKS} of {TASKS} were run twice")


def start_worker(host: Host, url: str, folder: Path) -> subprocess.Popen[bytes]:
    models = (
        f'[models.noted]\nbuild = "tests.broker.models:Noted"\nargs = [{json.dumps(str(folder / "runs"))}, 0.02]\n[pool]\nworkers = 1\n'
    )
    (folder / "MODELS.toml").write_text(models)
    place = ["--results", str(folder / "results")] if url.startswith("amqp") else []
    command = [sys.executable, "-m", "rankwise", "worker", str(folder / "MODELS.toml"), "--broker", url, "--prefetch", "16", *place]
    with open(folder / f"{host.name}.log", "wb") as log:
        return host.start(command, env=dict(os.environ), output=log, cwd=ROOT)


def answers(folder: Path) -> list[tuple[int, float, bool]]:
    path = folder / "answers"
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for_answers(folder: Path, count: int) -> None:
    end = time.monotonic() + 120
    while len(answers(folder)) < min(count, TASKS):
        assert time.monotonic() < end, f"{len(answers(folder))} answers, not {count}"
        time.sleep(0.2)
