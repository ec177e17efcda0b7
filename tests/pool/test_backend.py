"""What an engine has to do, and what the machine offers one: cores, nodes."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from rankwise.errors import UsageError
from rankwise.pool import Model, Pool, backend
from rankwise.pool.backend import cores_of_workers, numa_nodes
from rankwise.pool.schedule.state import PoolPlan
from rankwise.pool.stats import Counters


class Constant:
    """The smallest engine: every task gives 7."""

    def __init__(self, models: dict[str, Model], options: backend.PoolOptions) -> None:
        self.models, self.plan, self.counters = backend.states_of(models, ()), PoolPlan([], "nobody"), Counters(list(models))
        self.is_closed = False

    def submit(self, model: Any, inputs: Any, deadline_s: Any, priority: Any, seed: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(7)
        return future

    def stream(self, requests: Any, *_: Any) -> Any:
        return (7 for _ in requests)

    def has_open_tasks(self) -> bool:
        return False

    def close(self, cancel: bool, timeout: float | None) -> None:
        self.is_closed = True


start = Constant


def test_an_engine_of_ones_own_is_used_by_the_pool() -> None:
    with Pool({"m": Model("torch.nn:Identity")}, engine=__name__) as pool:
        assert pool.submit("m", 1).result() == 7
        assert list(pool.map("m", [1, 2])) == [7, 7]
    assert pool._backend.is_closed


def test_an_engine_that_is_not_there_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="engine is 'cloud'"):
        Pool({"m": Model("torch.nn:Identity")}, engine="cloud")


@pytest.mark.parametrize("engine", ["tests.pool.nowhere", "tests.pool.models"])  # there is none, and one without `start`
def test_a_module_that_is_no_engine_is_a_usage_error(engine: str) -> None:
    with pytest.raises(UsageError, match=f"engine '{engine}' cannot be used"):
        Pool({"m": Model("torch.nn:Identity")}, engine=engine)


TWO = [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize(
    ("count", "share", "nodes", "cores"),
    [
        (2, 2, [[0, 1, 2, 3]], [(0, 1), (2, 3)]),
        (2, 4, TWO, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (4, 2, TWO, [(0, 1), (4, 5), (2, 3), (6, 7)]),
        (2, 3, TWO, [(0, 1, 2), (4, 5, 6)]),
        (3, 1, [[0, 2], [1, 3]], [(0,), (1,), (2,)]),  # cores are often numbered across the nodes
        (2, 4, [[0, 1, 2, 3, 4, 5], [6, 7]], [(0, 1, 2, 3), (4, 5, 6, 7)]),  # rather over two nodes than twice on one
        (1, 8, TWO, [(0, 1, 2, 3, 4, 5, 6, 7)]),
        (3, 1, [[0], [1]], [(0,), (1,), (0,)]),  # more workers than cores
        (1, 4, [[0, 1]], [(0, 1, 0, 1)]),  # more threads than cores
    ],
)
def test_a_worker_stays_on_one_node(count: int, share: int, nodes: list[list[int]], cores: list[tuple[int, ...]]) -> None:
    assert cores_of_workers(count, share, nodes) == cores


def tree(folder: Path, **nodes: str) -> Path:
    for name, cores in nodes.items():
        (folder / name).mkdir()
        (folder / name / "cpulist").write_text(f"{cores}\n")
    (folder / "online").write_text("0-1\n")
    return folder


@pytest.mark.parametrize(
    ("nodes", "allowed", "found"),
    [
        ({"node0": "0-3", "node1": "4-7"}, set(range(8)), TWO),
        ({"node0": "0-3,8-9", "node1": "4-7"}, {1, 3, 5, 8, 9}, [[1, 3, 8, 9], [5]]),
        ({"node0": "0-1", "node1": "", "node10": "4", "node2": "2-3"}, {0, 1, 2, 3, 4}, [[0, 1], [2, 3], [4]]),  # one has memory only
        ({"node0": "0-1"}, {0, 1, 6}, [[0, 1], [6]]),
        ({"node0": "what?"}, {0, 1}, [[0, 1]]),
        ({}, {0, 1}, [[0, 1]]),
    ],
)
def test_nodes_are_read_as_the_kernel_writes_them(tmp_path: Path, nodes: dict[str, str], allowed: set[int], found: list[list[int]]) -> None:
    assert numa_nodes(allowed, tree(tmp_path, **nodes)) == found
