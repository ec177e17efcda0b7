"""Tasks through Redis and RabbitMQ while brokers are restarted and workers killed: what is lost, and what is answered twice?"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
import rankwise  # noqa: E402
from tests.broker.servers import RabbitMQ, Redis  # noqa: E402

_WINDOW = 2000  # tasks under way


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
    (folder / "MODELS.toml").write_text('[models.same]\nbuild = "torch.nn:Identity"\n[pool]\nworkers = 1\n')
    broker = kind(folder)
    workers: list[Any] = []
    broker.start()
    try:
        workers += [start_worker(folder, broker.url) for _ in range(2)]
        with rankwise.remote(broker.url, resend_s=20) as client:
            client.submit("same", np.zeros(1)).result(120)
            return report(name, *load(client, broker, workers, folder, options), options)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        broker.stop()
        shutil.rmtree(folder, ignore_errors=True)


def load(client: Any, broker: Any, workers: list[Any], folder: Path, options: argparse.Namespace) -> tuple[dict[int, int], int, float]:
    """How often each task was answered, how many answers were wrong, and the seconds."""
    answers: dict[int, int] = {}
    wrong = 0
    room = threading.Semaphore(_WINDOW)
    moments = {round((i + 1) * options.tasks / (options.faults + 1)): i for i in range(options.faults)}
    chance, started = random.Random(0), time.monotonic()

    def done(number: int, future: Any) -> None:
        nonlocal wrong
        answers[number] = answers.get(number, 0) + 1
        if future.exception() is not None or float(future.result()[0]) != number:
            wrong += 1
        room.release()

    futures = []
    for number in range(options.tasks):
        room.acquire()
        future = client.submit("same", np.full(1, number, np.float64))
        future.add_done_callback(lambda it, number=number: done(number, it))
        futures.append(future)
        if number in moments:
            fault(moments[number], broker, workers, folder, chance)
    for future in futures:
        future.exception(300)
    return answers, wrong, time.monotonic() - started


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
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)


def report(name: str, answers: dict[int, int], wrong: int, seconds: float, options: argparse.Namespace) -> int:
    lost, twice = options.tasks - len(answers), sum(count > 1 for count in answers.values())
    print(f"{name}: {options.tasks:,} tasks, {options.faults} faults: {lost} lost, {twice} answered twice, {wrong} wrong; {seconds:.0f} s")
    return 1 if lost or twice or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
