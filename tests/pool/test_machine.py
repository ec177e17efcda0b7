"""Which cores a worker is bound to, on machines that are made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwise.pool.backend import cores_of_workers, numa_nodes

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
