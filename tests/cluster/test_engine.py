"""The pool on a Ray cluster: the same calls, the same results and findings, also while nodes and actors are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from rankwise import Model, Pool
from rankwise.errors import UsageError
from rankwise.pool.errors import DeadlineExceeded, ModelUnavailable, PoolClosed, PoolFull, Quarantined, TaskHung
from tests.cluster.conftest import Nodes
from tests.pool import models as made

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray.*"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # Ray leaves sockets and files to the garbage collector
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # the same, told by pytest
]
ECHO, MOODY, SLEEPER = (f"tests.pool.models:{name}" for name in ("Echo", "Moody", "Sleeper"))


def ray_pool(nodes: Nodes, models: dict[str, Any], **options: Any) -> Pool:
    return Pool(models, engine="ray", address=nodes.address, **options)


def actor_pids(nodes: Nodes, pool: Pool) -> list[int]:
    return [actor.pid for actor in pool._backend.actors.ready]  # type: ignore[attr-defined]


def test_values_come_back_as_from_a_pool_of_one_machine(nodes: Nodes) -> None:
    named = made.Named(torch.ones(2), 3) if hasattr(made, "Named") else (torch.ones(2), 3)
    values: list[Any] = [
        torch.randn(3, 4),
        torch.randn(400, 500),  # through the object store
        torch.randn(5).bfloat16(),
        torch.tensor(7),
        np.arange(5, dtype=np.int16),
        np.random.default_rng(0).random((300, 200)),
        {"a": torch.ones(2), "b": [1, "text", None, torch.zeros(200, 100)]},
        "x" * 100_000,
        named,
        torch.empty(0, 3),
        torch.randn(64, 64).to_sparse(),
    ]
    with Pool({"echo": ECHO}, workers=1) as here, ray_pool(nodes, {"echo": ECHO}) as there:
        for value in values:
            expected, found = here.submit("echo", value).result(), there.submit("echo", value).result()
            assert type(found) is type(expected)
            assert _bits(found) == _bits(expected)
        large = there.submit("echo", values[1]).result()
        large[0] = 1.0  # the caller's own
        assert torch.equal(there.submit("echo", values[1]).result(), values[1])


def test_map_stream_async_ensembles_and_numbers_are_the_same(nodes: Nodes) -> None:
    models = {"double": Model("tests.pool.models:Rows", args=(32,), max_batch=32), "echo": Model(ECHO, replicas=1), "also": ECHO}
    with ray_pool(nodes, models, workers=2) as pool:
        xs = [torch.full((1, 3), float(i)) for i in range(300)]
        assert [float(y["y"][0, 0]) for y in pool.map("double", xs)] == [2.0 * i for i in range(300)]
        assert list(pool.stream([("echo", i) if i % 2 else ("also", i) for i in range(50)])) == list(range(50))
        assert asyncio.run(pool.asubmit("echo", 5)) == 5

        async def all_of() -> list[int]:
            return [y async for y in pool.amap("also", range(20))]

        assert asyncio.run(all_of()) == list(range(20))
        assert torch.equal(pool.ensemble(["echo", "also"]).submit(torch.ones(2)).result(), torch.ones(2))
        pool.load("echo").result(timeout=60)
        time.sleep(1.5)  # actors tell their numbers once a second
        stats = pool.stats()
        assert stats["models"]["double"]["completed"] == 300 and stats["models"]["double"]["mean_batch"] is not None
        assert stats["models"]["echo"]["replicas"] == 1
        assert len(stats["workers"]) == 2 and {worker["ready"] for worker in stats["workers"]} == {True}
        pool.unload("echo")
        assert pool.submit("echo", 3).result() == 3


def test_a_seed_gives_the_same_numbers_as_on_one_machine(nodes: Nodes) -> None:
    with Pool({"m": Model("torch.nn:Linear", args=(4, 4))}, workers=1, seed=5) as here:
        expected = here.submit("m", torch.ones(4)).result()
    with ray_pool(nodes, {"m": Model("torch.nn:Linear", args=(4, 4))}, seed=5) as there:
        assert all(torch.equal(y, expected) for y in there.map("m", [torch.ones(4)] * 20))


def test_errors_and_findings_are_the_same(nodes: Nodes) -> None:
    models = {
        "moody": Model(MOODY, limit_s=2.0),
        "gone": Model("tests.pool.models:nothing_here"),
        "sleep": Model(SLEEPER),
        "echo": ECHO,
    }
    with ray_pool(nodes, models, max_queue=40) as pool:
        with pytest.raises(ValueError, match="this row is bad") as raised:
            pool.submit("moody", torch.tensor([made.RAISE])).result()
        assert "in the worker" in str(raised.value.__cause__)
        with pytest.raises(Quarantined) as quarantined:
            pool.submit("moody", torch.tensor([made.EXIT])).result()
        assert quarantined.value.finding.code == "RW804" and quarantined.value.finding.certain
        with pytest.raises(TaskHung) as hung:
            pool.submit("moody", torch.tensor([made.HANG])).result()
        assert "time.sleep" in hung.value.finding.why or "forward" in hung.value.finding.why
        with pytest.raises(ModelUnavailable) as unavailable:
            pool.submit("gone", 1).result()
        assert unavailable.value.finding.code == "RW807"
        with pytest.raises(ModelUnavailable):
            pool.submit("gone", 1)
        with pytest.raises(DeadlineExceeded):
            pool.submit("sleep", 5.0, deadline_s=0.3).result()
        with pytest.raises(UsageError, match="cannot be sent"):
            pool.submit("echo", threading.Lock())
        waiting = [pool.submit("sleep", 0.3) for _ in range(20)]
        assert waiting[-1].cancel()
        with pytest.raises(PoolFull):
            for _ in range(100):
                pool.submit("sleep", 0.3)
        numbers = pool.stats()["models"]
        assert numbers["moody"]["quarantined"] == 1 and numbers["sleep"]["rejected"] == 1
        pool.close(cancel=True, timeout=5)
        with pytest.raises(PoolClosed):
            pool.submit("echo", 1)


def test_a_lost_node_costs_nothing_but_time(nodes: Nodes) -> None:
    """Each future is settled once, with its own result, while a node is killed in the middle of it."""
    with ray_pool(nodes, {"m": Model(SLEEPER)}) as pool:
        assert pool.submit("m", 0.0, "first").result()[2] == "first"
        settled: Counter[int] = Counter()
        futures = [pool.submit("m", 0.02, i) for i in range(300)]
        for i, future in enumerate(futures):
            future.add_done_callback(lambda _, i=i: settled.update([i]))
        while len(pool._backend.actors.ready) < 2:  # type: ignore[attr-defined]
            time.sleep(0.05)
        futures[20].result()
        nodes.kill(nodes.workers[0])
        assert [future.result(timeout=120)[2] for future in futures] == list(range(300))
        assert set(settled.values()) == {1} and len(settled) == 300
        assert pool.stats()["restarts"] >= 1
        assert pool.stats()["models"]["m"]["quarantined"] == 0


def test_a_node_that_joins_is_used(nodes: Nodes, eventually: Callable[..., Any]) -> None:
    with ray_pool(nodes, {"m": Model("tests.pool.models:Facts")}) as pool:
        eventually(lambda: len(pool.stats()["workers"]) == 2)
        before = {actor["number"] for actor in pool.stats()["actors"]}
        nodes.add()
        eventually(lambda: len([a for a in pool.stats()["actors"] if a["ready"] and a["number"] not in before]) == 1)
        pids: set[int] = set()

        def all_three() -> bool:
            pids.update(facts["pid"] for facts in pool.map("m", [()] * 60))
            return len(pids) == 3

        eventually(all_three)
    nodes.kill(nodes.workers[-1])


def test_actors_killed_under_load_are_replaced(nodes: Nodes) -> None:
    with ray_pool(nodes, {"m": Model(SLEEPER)}, workers=2) as pool:
        futures = [pool.submit("m", 0.01, i) for i in range(600)]
        for kill_at in (50, 250, 450):
            futures[kill_at].result(timeout=120)
            for pid in actor_pids(nodes, pool)[:1]:
                os.kill(pid, signal.SIGKILL)
        assert [future.result(timeout=120)[2] for future in futures] == list(range(600))
        assert pool.stats()["models"]["m"]["quarantined"] == 0


def test_an_input_that_kills_actors_is_quarantined_and_no_other(nodes: Nodes) -> None:
    with ray_pool(nodes, {"m": Model("tests.cluster.models:ActorKiller")}, workers=1) as pool:
        others = [pool.submit("m", float(i)) for i in range(5)]
        bad = pool.submit("m", -1.0)
        others += [pool.submit("m", float(i)) for i in range(5, 10)]
        with pytest.raises(Quarantined) as quarantined:
            bad.result(timeout=200)
        assert not quarantined.value.finding.certain and "Ray actors that died" in quarantined.value.finding.summary
        assert [future.result(timeout=100) for future in others] == [float(i) for i in range(10)]


def test_a_model_that_one_node_cannot_build_runs_on_the_others(nodes: Nodes, tmp_path: Path) -> None:
    here = tmp_path / "builds"
    with ray_pool(nodes, {"m": Model("tests.cluster.models:OnlyOnce", args=(str(here),), replicas=2)}, workers=2) as pool:
        assert list(pool.map("m", range(40))) == list(range(40))


def test_what_was_submitted_is_done_at_the_end_of_a_script(nodes: Nodes, tmp_path: Path) -> None:
    """Without `with` and without `close`, as with the standard library's executors; and nothing is left of it."""
    script = tmp_path / "script.py"
    script.write_text(
        "import rankwise, sys\n"
        "def build():\n    return lambda x: x + 1\n"
        "if __name__ == '__main__':\n"
        "    pool = rankwise.Pool({'m': build}, engine='ray', address=sys.argv[1], workers=1)\n"
        "    pool.submit('m', 1).add_done_callback(lambda f: print('got', f.result()))\n"
    )
    ran = subprocess.run([sys.executable, script, nodes.address], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert ran.stdout.count("got 2") == 1 and ran.returncode == 0, ran.stdout + ran.stderr


def test_a_driver_that_is_killed_leaves_nothing_on_the_nodes(nodes: Nodes, tmp_path: Path, eventually: Callable[..., Any]) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import rankwise, sys\n"
        "pool = rankwise.Pool({'m': rankwise.Model('tests.pool.models:Sleeper')}, engine='ray', address=sys.argv[1])\n"
        "pool.submit('m', 0.0).result()\nprint('ready', flush=True)\npool.submit('m', 60.0).result()\n"
    )
    driver = subprocess.Popen([sys.executable, script, nodes.address], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None and any("ready" in line for line in driver.stdout)
    assert nodes.pool_processes()
    driver.kill()
    driver.wait()
    driver.stdout.close()
    eventually(lambda: not nodes.pool_processes())


def test_a_pool_uses_the_connection_of_the_program_and_leaves_it_alone(nodes: Nodes) -> None:
    import ray

    ray.init(address=nodes.address, log_to_driver=False)
    try:
        with Pool({"m": ECHO}, engine="ray", workers=1) as pool:
            assert pool.submit("m", 1).result() == 1
            with pytest.raises(UsageError, match="one cluster at a time"):
                Pool({"m": ECHO}, engine="ray", address="10.9.8.7:1234")
        assert ray.is_initialized()
    finally:
        ray.shutdown()
    assert psutil.Process().is_running()


def _bits(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.to_dense() if value.is_sparse else value
        return value.dtype, value.shape, value.contiguous().view(-1).view(torch.uint8).tolist() if value.numel() else []
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: _bits(item) for key, item in value.items()}
    return [_bits(item) for item in value] if isinstance(value, (list, tuple)) else value
