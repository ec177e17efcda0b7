"""Steady load from several threads while workers are killed, stopped, crashed and run out of memory: nothing lost, twice or mixed up."""

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

from rankwise.pool import DeadlineExceeded, Model, Pool, PoolFull, Quarantined  # noqa: E402
from rankwise.pool.workers.runner import is_out_of_memory  # noqa: E402
from tests.pool.cgroup_memory import Group, memory_group, squeeze  # noqa: E402
from tests.pool.models import FLOOD, TOO_MUCH  # noqa: E402

STARTS_COLD = True  # all of a pool as users have it
HERE = "tests.pool.models"
MODELS = {  # with what each makes of a number
    "double": (Model(f"{HERE}:moody"), lambda x: 2 * x),
    "rows": (Model(f"{HERE}:rows", max_batch=8), lambda x: 2 * x),
    "hungry": (Model(f"{HERE}:hungry", max_batch=8), lambda x: x + 1),
    "small": (Model(f"{HERE}:weighty", args=(2,)), lambda x: x),
    "medium": (Model(f"{HERE}:weighty", args=(4,)), lambda x: x),
}
GROUP_BYTES = 192 << 20
SECONDS = float(os.environ.get("RANKWISE_SOAK_S", "12"))
SIGNALS = [signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP, signal.SIGABRT]


@dataclass
class Tally:
    """What became of the tasks of one thread."""

    submitted: int = 0
    right: int = 0
    wrong: list[str] = field(default_factory=list)
    excused: int = 0  # refused, cancelled or late, as they were meant to be able to be
    ran_out: int = 0  # told that there was no memory, by the model's own error
    flooded: int = 0  # ended by the kernel, with the worker, for want of memory


@dataclass(frozen=True)
class Asked:
    """A task under way, and what may come of it."""

    future: Any
    expected: float
    size: int
    may_fail: bool
    wish: float = 0.0


def caller(pool: Pool, seed: int, end: float, tally: Tally, wishes: list[float]) -> None:
    """Submits tasks that carry proof of what they are, and looks at each result once. Now and then one asks for too much memory."""
    rng = random.Random(seed)
    waiting: list[Asked] = []
    number = seed * 1_000_000
    while time.monotonic() < end or waiting:
        if time.monotonic() < end and len(waiting) < 24:
            number += 1
            tally.submitted += 1
            try:
                waiting.append(ask(pool, rng, number, rng.choice(wishes) if rng.random() < 0.002 else 0.0))
            except PoolFull:
                tally.excused += 1
        else:
            look(waiting.pop(rng.randrange(len(waiting))), tally)


def ask(pool: Pool, rng: random.Random, number: int, wish: float) -> Asked:
    size = rng.choice([1, 3, 100, 3000, 70_000])
    model = "double" if wish else rng.choice(list(MODELS))
    may_fail = not wish and rng.random() < 0.1
    x = torch.full((2, size), wish or float(number))
    future = pool.submit(model, x, deadline_s=rng.choice([0.001, 0.05]) if may_fail else None, priority=rng.choice([0, 0, 1]))
    if may_fail and rng.random() < 0.3:
        future.cancel()
    return Asked(future, MODELS[model][1](wish or float(number)), size, may_fail, wish)


def look(asked: Asked, tally: Tally) -> None:
    try:
        y = asked.future.result(60)
    except (DeadlineExceeded, CancelledError) as error:
        if asked.may_fail:
            tally.excused += 1
        else:
            tally.wrong.append(repr(error))
        return
    except Quarantined as error:
        if asked.wish == FLOOD and "memory ran out" in error.finding.why:
            tally.flooded += 1
        else:
            tally.wrong.append(f"{error!r} {error.finding.why}")
        return
    except Exception as error:
        if is_out_of_memory(error):
            tally.ran_out += 1
        else:
            tally.wrong.append(repr(error))
        return
    y = y["y"] if isinstance(y, dict) else y
    if asked.wish != TOO_MUCH and y.shape == (2, asked.size) and bool(y.eq(asked.expected).all()):
        tally.right += 1
    else:
        tally.wrong.append(f"expected {asked.expected} {asked.size}, got {y.flatten()[:3].tolist()} {tuple(y.shape)}")


def harass(pool: Pool, end: float, seed: int) -> int:
    rng, done = random.Random(seed), 0
    while time.monotonic() < end:
        time.sleep(rng.uniform(0.1, 0.6))
        if pids := workers_of(pool):
            if rng.random() < 0.2:
                squeeze(rng.choice(pids), rng.uniform(0.05, 0.4))
                continue
            try:
                os.kill(rng.choice(pids), rng.choice(SIGNALS))
                done += 1
            except ProcessLookupError:
                pass
    return done


def enclose(pool: Pool, end: float, group: Group) -> None:
    """Every worker, as soon as it is there: the memory it takes from then on is the group's."""
    known: set[int] = set()
    while time.monotonic() < end:
        for pid in set(workers_of(pool)) - known:
            group.add(pid)
            known.add(pid)
        time.sleep(0.02)


def workers_of(pool: Pool) -> list[int]:
    return [worker["pid"] for worker in pool.stats()["workers"] if worker["ready"] and worker["pid"]]


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


@pytest.mark.live
@pytest.mark.timeout(SECONDS + 120)
def test_nothing_is_lost_doubled_or_mixed_up_while_workers_die() -> None:
    me = psutil.Process()
    fds, threads, children = open_files(), threading.active_count(), set(me.children(recursive=True))
    tallies = [Tally() for _ in range(3)]
    with memory_group(GROUP_BYTES) as group:
        wishes = [TOO_MUCH] if isinstance(group, str) else [TOO_MUCH, FLOOD]
        with Pool({name: model for name, (model, _) in MODELS.items()}, workers=2, memory="7MB", max_queue=40) as pool:
            pool.submit("double", torch.ones(1)).result(60)
            end = time.monotonic() + SECONDS
            callers = [threading.Thread(target=caller, args=(pool, i + 1, end, tally, wishes)) for i, tally in enumerate(tallies)]
            if not isinstance(group, str):
                callers.append(threading.Thread(target=enclose, args=(pool, end, group)))
            for thread in callers:
                thread.start()
            kills = harass(pool, end - 1, 7)
            for thread in callers:
                thread.join()
            stats = pool.stats()
        del pool

    wrong = [text for tally in tallies for text in tally.wrong]
    assert not wrong, wrong[:5]
    assert sum(t.right + t.excused + t.ran_out + t.flooded for t in tallies) == sum(t.submitted for t in tallies)
    assert kills > 5 and stats["restarts"] >= kills // 2
    assert sum(t.right for t in tallies) > 100
    assert sum(t.ran_out for t in tallies) > 0
    assert not set(me.children(recursive=True)) - children
    assert threading.active_count() == threads
    left = sorted(open_files() - fds)
    assert not left, left
    # Where the machine lends no memory cgroup, the kernel kills nobody; all the rest has been held.
    assert isinstance(group, str) or sum(t.flooded for t in tallies) > 0
