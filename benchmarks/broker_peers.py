"""`rankwise worker` beside Celery: the same models, the same broker, two worker processes each, in turns."""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT, HERE = Path(__file__).parents[1], Path(__file__).parent
sys.path[:0] = [str(ROOT), str(HERE)]
from environments import environment  # noqa: E402
from machine import machine_facts  # noqa: E402
from ray_models import inputs_of  # noqa: E402
from table import HEAD, Line  # noqa: E402

import rankwise  # noqa: E402
from tests.broker.servers import RabbitMQ, Redis  # noqa: E402

CELERY = "celery[redis]==5.6.3"
ROUNDS = int(os.environ.get("RANKWISE_REPEATS", "3"))
WORKERS = 2
MODELS = f"""
[models.middle]
build = "ray_models:build_middle"
max_batch = 32
[models.sums]
build = "ray_models:build_sums"
[pool]
workers = {WORKERS}
threads = 1
"""
# what, the model, rows of a task, tasks, whether the next is sent only after the last is answered
CASES = [
    ("small tasks", "middle", 1, 1000, False),
    ("small tasks, one after the other", "middle", 1, 100, True),
    ("200 KB a task", "sums", 50, 100, False),
]
JSON_WAY = "Celery, lists in JSON"  # takes seconds for a large tensor, which nobody would put up with
Way = Callable[[str, int, int, bool], tuple[float, float]]  # seconds, and the sum of the last result


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=["redis", "rabbitmq"])
    only = parser.parse_args().only
    kinds: dict[str, Any] = {"redis": Redis, "rabbitmq": RabbitMQ}
    python = environment("celery", CELERY, with_torch=True)
    lines = [line for name, kind in kinds.items() if only in (None, name) for line in measured(name, kind, python)]
    text = report(lines)
    print(text)
    path = HERE / "results" / "broker.md"
    _, mark, soak = path.read_text().partition("\n# Tasks while")  # what `soak_broker.py` found stays
    path.write_text(text + mark + soak)
    return 0 if all(line.is_met is not False for line in lines) else 1


def measured(broker_name: str, kind: Any, python: Path) -> list[Line]:
    folder = Path(tempfile.mkdtemp(prefix="rw-peers-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        broker = kind(folder)
        broker.fsync = "everysec"
        stack.callback(broker.stop)
        broker.start()
        theirs = celery_ways(python, broker.url, folder, stack)
        ways: dict[str, Way] = {"rankwise": our_way(broker.url, folder, stack), **theirs}
        small = [line for case in CASES[:2] for line in lines_of(broker_name, ways, *case)]
        del ways[JSON_WAY]
        return [*small, *lines_of(broker_name, ways, *CASES[2])]


def our_way(url: str, folder: Path, stack: ExitStack) -> Way:
    (folder / "MODELS.toml").write_text(MODELS)
    place = ["--results", str(folder / "results")] if url.startswith("amqp") else []
    start([sys.executable, "-m", "rankwise", "worker", str(folder / "MODELS.toml"), "--broker", url, *place], folder, stack)
    client = stack.enter_context(rankwise.remote(url))

    def run(name: str, rows: int, count: int, is_alone: bool) -> tuple[float, float]:
        x = inputs_of(name, rows)
        started = time.perf_counter()
        if is_alone:
            results = [client.submit(name, x).result(300) for _ in range(count)]
        else:
            results = [future.result(300) for future in [client.submit(name, x) for _ in range(count)]]
        return time.perf_counter() - started, float(results[-1].sum())

    return run


def celery_ways(python: Path, url: str, folder: Path, stack: ExitStack) -> dict[str, Way]:
    env = {"BROKER": url, "BACKEND": "rpc://" if url.startswith("amqp") else url, "C_FORCE_ROOT": "1"}  # or root may not read pickles
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=ERROR"]
    start([str(python), "-m", "celery", "-A", "with_celery", "worker", f"--concurrency={WORKERS}", *quiet], folder, stack, env)
    client = start(
        [str(python), str(HERE / "with_celery.py")], folder, stack, env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def way(kind: str) -> Way:
        def run(name: str, rows: int, count: int, is_alone: bool) -> tuple[float, float]:
            print(kind, name, rows, count, *(["1"] if is_alone else []), file=client.stdin, flush=True)
            seconds, total = client.stdout.readline().split()
            return float(seconds), float(total)

        return run

    return {"Celery, pickled arrays": way("pickle"), JSON_WAY: way("json")}


def start(command: list[str], folder: Path, stack: ExitStack, env: dict[str, str] | None = None, **options: Any) -> Any:
    known = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT)]), "OMP_NUM_THREADS": "1", **(env or {})}
    log = stack.enter_context((folder / "workers.log").open("ab"))
    process = subprocess.Popen(command, cwd=HERE, env=known, **{"stdout": log, "stderr": log, **options})

    def stop() -> None:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    stack.callback(stop)
    return process


def lines_of(broker_name: str, ways: dict[str, Way], what: str, name: str, rows: int, count: int, is_alone: bool) -> list[Line]:
    """Medians of some rounds, after one that does not count."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    totals: dict[str, float] = {}
    for _ in range(ROUNDS + 1):
        for way, run in ways.items():
            taken, totals[way] = run(name, rows, count, is_alone)
            seconds[way].append(taken)
            print(f"{broker_name}, {what}, {way}: {count / taken:,.0f}/s", flush=True)
    assert max(totals.values()) - min(totals.values()) < 1e-2 * max(1, abs(totals["rankwise"])), totals
    rate = {way: count / statistics.median(times[1:]) for way, times in seconds.items()}
    ours = rate.pop("rankwise")
    return [
        Line(f"{broker_name}: {what}, against {way}", shown(ours, is_alone), shown(it, is_alone), ours / it) for way, it in rate.items()
    ]


def shown(rate: float, is_alone: bool) -> str:
    return f"{1000 / rate:.1f} ms" if is_alone else f"{rate:,.0f}/s"


def report(lines: list[Line]) -> str:
    return "\n".join(
        [
            "# `rankwise worker` beside Celery",
            "",
            f"The same models in {WORKERS} worker processes of one thread each, at the same broker (Redis with `appendfsync everysec`,",
            "RabbitMQ with persistent messages), one client that sends all and waits for all. Celery runs prefork with `task_acks_late`",
            "(without it, a task whose worker dies is lost), a prefetch of 32 a process, results in Redis or over `rpc://`, and without",
            "gossip, mingle and heartbeat. rankwise gathers up to 32 rows of the small model in one batch, and stores each answer before",
            "it acknowledges: in Redis, or for RabbitMQ in a folder.",
            f"All take turns in one run; medians of {ROUNDS} after one that does not count. A ratio over 1 is in favour of rankwise.",
            "",
            *HEAD,
            *map(str, lines),
            "",
            f"{machine_facts()}, Celery {CELERY.partition('==')[2]}, kombu {version('kombu')}",
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
