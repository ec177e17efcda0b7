"""Steady load from several threads while workers are killed, stopped and crashed: nothing lost, nothing twice, nothing mixed up."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest

torch = pytest.importorskip("torch")

from rankwise.pool import DeadlineExceeded, Model, Pool, PoolFull  # noqa: E402

HERE = "tests.pool.models"
SECONDS = float(os.environ.get("RANKWISE_SOAK_S", "12"))
SIGNALS = [signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP, signal.SIGABRT]


@dataclass
class Tally:
    """What became of the tasks of one thread."""

    submitted: int = 0
    right: int = 0
    wrong: list[str] = field(default_factory=list)
    excused: int = 0  # refused, cancelled or late, as they were meant to be able to be


def caller(pool: Pool, seed: int, end: float, tally: Tally) -> None:
    """Submits tasks that carry proof of what they are, and looks at each result once."""
    rng = random.Random(seed)
    waiting: list[tuple[float, int, Any, bool]] = []
    number = seed * 1_000_000
    while time.monotonic() < end or waiting:
        if time.monotonic() < end and len(waiting) < 24:
            number += 1
            size = rng.choice([1, 3, 100, 3000, 70_000])
            model = rng.choice(["double", "rows", "small", "medium"])
            may_fail = rng.random() < 0.1
            x = torch.full((2, size), float(number))
            tally.submitted += 1
            try:
                future = pool.submit(model, x, deadline_s=rng.choice([0.001, 0.05]) if may_fail else None, priority=rng.choice([0, 0, 1]))
            except PoolFull:
                tally.excused += 1
                continue
            if may_fail and rng.random() < 0.3:
                future.cancel()
            waiting.append((2.0 * number if model in ("double", "rows") else float(number), size, future, may_fail))
        else:
            look(*waiting.pop(rng.randrange(len(waiting))), tally)


def look(expected: float, size: int, future: Any, may_fail: bool, tally: Tally) -> None:
    try:
        y = future.result(60)
    except (DeadlineExceeded, CancelledError) as error:
        if may_fail:
            tally.excused += 1
        else:
            tally.wrong.append(repr(error))
        return
    except Exception as error:
        tally.wrong.append(repr(error))
        return
    y = y["y"] if isinstance(y, dict) else y
    if y.shape == (2, size) and bool(y.eq(expected).all()):
        tally.right += 1
    else:
        tally.wrong.append(f"expected {expected} {size}, got {y.flatten()[:3].tolist()} {tuple(y.shape)}")


def harass(pool: Pool, end: float, seed: int) -> int:
    rng, done = random.Random(seed), 0
    while time.monotonic() < end:
        time.sleep(rng.uniform(0.1, 0.6))
        pids = [worker["pid"] for worker in pool.stats()["workers"] if worker["ready"] and worker["pid"]]
        if pids:
            try:
                os.kill(rng.choice(pids), rng.choice(SIGNALS))
                done += 1
            except ProcessLookupError:
                pass
    return done


def open_files() -> set[str]:
    """Of this process, each with what it is; a test before may have left cycles that hold some."""
    gc.collect()
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
        except OSError:  # the folder's own
            pass
    return found


@pytest.mark.timeout(SECONDS + 120)
def test_nothing_is_lost_doubled_or_mixed_up_while_workers_die() -> None:
    me = psutil.Process()
    fds, threads = open_files(), threading.active_count()
    models = {
        "double": Model(f"{HERE}:moody"),
        "rows": Model(f"{HERE}:rows", max_batch=8),
        "small": Model(f"{HERE}:weighty", args=(2,)),
        "medium": Model(f"{HERE}:weighty", args=(4,)),
    }
    tallies = [Tally() for _ in range(3)]
    with Pool(models, workers=2, memory="7MB", max_queue=40) as pool:
        pool.submit("double", torch.ones(1)).result(60)
        end = time.monotonic() + SECONDS
        callers = [threading.Thread(target=caller, args=(pool, i + 1, end, tally)) for i, tally in enumerate(tallies)]
        for thread in callers:
            thread.start()
        kills = harass(pool, end - 1, 7)
        for thread in callers:
            thread.join()
        stats = pool.stats()
    del pool

    wrong = [text for tally in tallies for text in tally.wrong]
    assert not wrong, wrong[:5]
    assert sum(t.right + t.excused for t in tallies) == sum(t.submitted for t in tallies)
    assert kills > 5 and stats["restarts"] >= kills // 2
    assert sum(t.right for t in tallies) > 100
    assert not me.children(recursive=True)
    assert threading.active_count() == threads
    left = sorted(open_files() - fds)
    assert not left, left
