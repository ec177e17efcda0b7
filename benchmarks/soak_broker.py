"""Tasks through Redis and RabbitMQ while brokers and workers are killed: what is lost, answered twice, or run without need?

A run is needed where it is the task's first, or where the worker that ran it before was killed before the answer came.
"""

from __future__ import annotations

import argparse
import itertools
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


@dataclass(frozen=True)
class Run:
    task: int
    at: float
    worker: int


class Workers:
    """Two at any time. Each notes what it runs in a file of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._url, self._numbers = folder, url, itertools.count()
        self._running: dict[int, Any] = {}
        self.killed: dict[int, float] = {}  # when
        self._start()
        self._start()

    def kill_one(self, chance: random.Random) -> None:
        number = chance.choice(list(self._running))
        self._running[number].kill()
        self.killed[number] = time.time()
        self._running.pop(number).wait()
        self._start()

    def stop(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()

    def runs(self) -> list[Run]:
        """What the models noted; the task before the first has a number below 0."""
        found = []
        for path in self._folder.glob("runs.*"):
            lines = [line.split() for line in path.read_text().splitlines()]
            found += [Run(int(task), float(at), int(path.name.split(".")[1].split("-")[0])) for task, at in lines if int(task) >= 0]
        return found

    def _start(self) -> None:
        number = next(self._numbers)
        models = self._folder / f"{number}.toml"
        note = json.dumps(str(self._folder / f"runs.{number}"))
        models.write_text(f'[models.noted]\nbuild = "tests.broker.models:Noted"\nargs = [{note}]\n[pool]\nworkers = 1\n')
        place = ["--results", str(self._folder / "results")] if self._url.startswith("amqp") else []
        command = [sys.executable, "-m", "rankwise", "worker", str(models), "--broker", self._url, *place]
        with open(self._folder / "workers.log", "ab") as log:
            self._running[number] = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--only", choices=["redis", "rabbitmq"])
    parser.add_argument("--resend-s", type=float, default=60.0, help="as remote() has it")
    options = parser.parse_args()
    kinds = {"redis": Redis, "rabbitmq": RabbitMQ}
    return max(soak(name, kinds[name], options) for name in kinds if options.only in (None, name))


def soak(name: str, kind: Any, options: argparse.Namespace) -> int:
    folder = Path(tempfile.mkdtemp(prefix="rw-soak-"))
    broker = kind(folder)
    broker.start()
    workers = Workers(folder, broker.url)
    try:
        with rankwise.remote(broker.url, resend_s=options.resend_s) as client:
            client.submit("noted", np.full(1, -1.0)).result(120)
            started = time.monotonic()
            seen = load(client, broker, workers, options)
            return report(name, seen, workers, time.monotonic() - started, options)
    finally:
        workers.stop()
        broker.stop()
        shutil.rmtree(folder, ignore_errors=True)


def load(client: Any, broker: Any, workers: Workers, options: argparse.Namespace) -> Seen:
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
            if moments[number] % 4 == 3:
                broker.kill()
                broker.start()
            else:
                workers.kill_one(chance)
    for future in futures:
        future.exception(300)
    return seen


def needless(runs: list[Run], seen: Seen, killed: dict[int, float]) -> int:
    found, last = 0, dict[int, Run]()
    for run in sorted(runs, key=lambda run: run.at):
        before = last.get(run.task)
        is_needed = before is None or killed.get(before.worker, math.inf) < run.at
        found += not is_needed or run.at > seen.when.get(run.task, math.inf)
        last[run.task] = run
    return found


def report(name: str, seen: Seen, workers: Workers, seconds: float, options: argparse.Namespace) -> int:
    lost, twice = options.tasks - len(seen.answers), sum(count > 1 for count in seen.answers.values())
    runs = workers.runs()
    for_nothing = needless(runs, seen, workers.killed)
    again = len(runs) - options.tasks - for_nothing
    print(
        f"{name}: {options.tasks:,} tasks, {options.faults} faults: {lost} lost, {twice} answered twice, {seen.wrong} wrong, "
        f"{again} run again because their worker was killed, {for_nothing} run without need; {seconds:.0f} s",
        flush=True,
    )
    return 1 if lost or twice or seen.wrong or for_nothing else 0


if __name__ == "__main__":
    sys.exit(main())
