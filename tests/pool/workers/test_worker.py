"""A worker that is short of files or memory; and a model that forks: the child that comes back answers nothing, and takes nothing away."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from tests.families import mostly_live

torch = pytest.importorskip("torch")

from rankwise.pool import Model, Pool  # noqa: E402

WAYS = ["beside", "returns", "raises", "leaves", "in C"]
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    models = {
        f"{way}, {rows}": Model("tests.pool.models:forking", args=(way,), max_batch=rows, limit_s=20) for way in WAYS for rows in (1, 4)
    }
    models |= {f"{way}, built": Model("tests.pool.models:forking", args=(way, True), limit_s=20) for way in WAYS}
    with Pool(models, workers=1) as pool:
        yield pool


@pytest.mark.parametrize("how", mostly_live(["1", "4", "built"]))
@pytest.mark.parametrize("way", WAYS)
def test_each_task_is_answered_once_and_none_is_lost(pool: Pool, way: str, how: str) -> None:
    model = f"{way}, {how}"
    for i in range(5):  # one by one, by the short way
        assert pool.submit(model, torch.full((1, 2), float(i))).result(15).tolist() == [[2.0 * i, 2.0 * i]]
    futures = [pool.submit(model, torch.full((1, 2), float(i))) for i in range(40)]
    assert [future.result(15)[0, 0].item() for future in futures] == [2.0 * i for i in range(40)]
    assert [y[0, 0].item() for y in pool.map(model, [torch.full((1, 2), float(i)) for i in range(40)])] == [2.0 * i for i in range(40)]
    numbers = pool.stats()["models"][model]

    assert numbers["failed"] == numbers["rerun"] == 0 and pool.stats()["restarts"] == 0


LARGE = 16_000_000  # floats, more than a worker below has room for


def test_an_input_that_no_worker_has_room_for_fails_and_the_next_task_runs() -> None:
    with Pool({"echo": Model("tests.pool.models:echo")}, workers=1) as pool:
        before = pool.submit("echo", np.ones(2)).result(60)
        pids = [pool.stats()["workers"][0]["pid"], pool._backend.lifecycle.fork_server.process.pid]
        for pid in pids:  # and so for all workers to come
            resource.prlimit(pid, resource.RLIMIT_AS, (psutil.Process(pid).memory_info().vms + (32 << 20), -1))
        x = pool.empty((LARGE,))

        with pytest.raises(OSError, match="an input cannot be read in the worker: Cannot allocate memory"):
            pool.submit("echo", x).result(60)
        resource.prlimit(pids[1], resource.RLIMIT_AS, (-1, -1))
        assert pool.submit("echo", np.ones(2)).result(60).tolist() == before.tolist()
        assert pool.stats()["restarts"] <= 4  # each worker fails with a task, or gives way to a new one


def test_workers_without_files_left_build_models_and_give_way_to_one_that_can_read() -> None:
    models = {name: Model("tests.pool.models:weighty", replicas=2) for name in ("first", "next")}
    with Pool(models, workers=2) as pool:
        pool.load("first").result(60)
        for worker in pool.stats()["workers"]:
            taken = {int(fd) for fd in os.listdir(f"/proc/{worker['pid']}/fd")}
            lowest = min(set(range(1000)) - taken)
            resource.prlimit(worker["pid"], resource.RLIMIT_NOFILE, (lowest, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

        pool.load("next").result(60)  # without the file that replicas share their weights by
        assert pool.stats()["restarts"] == 0
        assert pool.submit("next", pool.empty((LARGE,))).result(60).shape == (LARGE,)
        assert pool.stats()["restarts"] > 0
