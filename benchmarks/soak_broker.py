"""Tasks through Redis and RabbitMQ while brokers and workers are killed: what is lost, answered twice, or run without need?"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
import rankwise  # noqa: E402
from tests.broker.servers import RabbitMQ, Redis  # noqa: E402

_WINDOW = 2000  # tasks under way


@dataclass
class Seen:
    """How often each task was answered, when first, and how many answers were wrong."""

    answers: dict[int, int] = field(default_factory=dict)
    when: dict[int, float] = field(default_factory=dict)
    wrong: int = 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--only", choices=["redis", "rabbitmq"])
    options = parser.parse_args()
    kinds = {"redis": Redis, "rabbitmq": RabbitMQ}
    return max(soak(name, kinds[name], options) for name in kinds if options.only in (None, name))


def soak(name: str, kind: Any, options: argparse.Namespace) -> int:
    folder = Path(tempfile.mkdtemp(prefix="rw-soak-"))
    model = f'build = "tests.broker.models:Noted"\nargs = [{json.dumps(str(folder / "runs"))}]'
    (folder / "MODELS.toml").write_text(f"[models.noted]\n{model}\n[pool]\nworkers = 1\n")
    broker = kind(folder)
    workers: list[Any] = []
    broker.start()
    try:
        workers += [start_worker(folder, broker.url) for _ in range(2)]
        with rankwise.remote(broker.url, resend_s=3600) as client:  # nothing is sent twice, so what comes again comes from the broker
            client.submit("noted", np.full(1, -1.0)).result(120)
            started = time.monotonic()
            seen = load(client, broker, workers, folder, options)
            return report(name, seen, runs_in(folder), time.monotonic() - started, options)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        broker.stop()
        shutil.rmtree(folder, ignore_errors=True)


def load(client: Any, broker: Any, workers: list[Any], folder: Path, options: argparse.Namespace) -> Seen:
    seen, room, chance = Seen(), threading.Semaphore(_WINDOW), random.Random(0)
    moments = {round((i + 1) * options.tasks / (options.faults + 1)): i for i in range(options.faults)}

    def done(number: int, future: Any) -> None:
        seen.answers[number] = seen.answers.get(number, 0) + 1
        seen.when.setdefault(number, time.time())
        if future.exception() is not None or float(future.result()[0]) != 2 * number:
            seen.wrong += 1
        room.release()

    futures = []
    for number in range(options.tasks):
        room.acquire()
        future = client.submit("noted", np.full(1, number, np.float64))
        future.add_done_callback(lambda it, number=number: done(number, it))
        futures.append(future)
        if number in moments:
            fault(moments[number], broker, workers, folder, chance)
    for future in futures:
        future.exception(300)
    return seen


def fault(number: int, broker: Any, workers: list[Any], folder: Path, chance: random.Random) -> None:
    if number % 4 == 3:
        broker.kill()
        broker.start()
        return
    place = chance.randrange(len(workers))
    workers[place].kill()
    workers[place].wait()
    workers[place] = start_worker(folder, broker.url)


def start_worker(folder: Path, url: str) -> Any:
    place = ["--results", str(folder / "results")] if url.startswith("amqp") else []
    command = [sys.executable, "-m", "rankwise", "worker", str(folder / "MODELS.toml"), "--broker", url, *place]
    with open(folder / "workers.log", "ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)


def runs_in(folder: Path) -> list[tuple[int, float]]:
    """What the models noted: which task, and when."""
    lines = [line.split() for path in folder.glob("runs-*") for line in path.read_text().splitlines()]
    return [(int(number), float(at)) for number, at in lines if int(number) >= 0]


def report(name: str, seen: Seen, runs: list[tuple[int, float]], seconds: float, options: argparse.Namespace) -> int:
    lost, twice = options.tasks - len(seen.answers), sum(count > 1 for count in seen.answers.values())
    needless = sum(at > seen.when.get(number, math.inf) for number, at in runs)
    print(
        f"{name}: {options.tasks:,} tasks, {options.faults} faults: {lost} lost, {twice} answered twice, {seen.wrong} wrong, "
        f"{len(runs) - options.tasks} run again after a fault, {needless} run although answered; {seconds:.0f} s",
        flush=True,
    )
    return 1 if lost or twice or seen.wrong or needless else 0


if __name__ == "__main__":
    sys.exit(main())
