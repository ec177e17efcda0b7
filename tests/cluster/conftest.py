"""A Ray cluster of several nodes on this machine, for all tests of this folder; each test finds it with two workers' nodes."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest

from tests.conftest import MARK, describe, kill, marked_processes, settled

collect_ignore_glob = [] if find_spec("ray") else ["test_*.py"]  # where Ray cannot be installed


STORE = {"object_store_memory": 200 << 20}


class Nodes:
    """The cluster, and what a test does to it."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.mark, self.folder = uuid.uuid4().hex, tempfile.mkdtemp(prefix="rwr-", dir="/tmp")
        os.environ["RAY_TMPDIR"] = self.folder
        with self._marked():
            self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **STORE})
        self.workers: list[Any] = []
        self.address = self.cluster.address

    def fill_up(self) -> None:
        while len(self.workers) < 2:
            self.add()

    def add(self, **resources: Any) -> Any:
        with self._marked():
            self.workers.append(self.cluster.add_node(**{"num_cpus": 1, **STORE, **resources}))
        return self.workers[-1]

    def kill(self, node: Any) -> None:
        """As a power cut: no goodbye."""
        self.workers.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)

    def dismiss(self, node: Any) -> None:
        """With a goodbye: the cluster knows at once."""
        self.workers.remove(node)
        self.cluster.remove_node(node, allow_graceful=True)

    def pool_processes(self) -> list[str]:
        """What pools have started on the nodes: the processes that workers are forked from, and the workers."""
        found = [describe(process) for process in marked_processes(self.mark)]
        return [text for text in found if "rankwise" in text or "PoolActor" in text]

    def close(self) -> list[str]:
        self.cluster.shutdown()
        left = settled(lambda: [describe(process) for process in marked_processes(self.mark)])
        kill(marked_processes(self.mark))
        shutil.rmtree(self.folder, ignore_errors=True)
        os.environ.pop("RAY_TMPDIR", None)
        return left

    @contextmanager
    def _marked(self) -> Iterator[None]:
        """Everything that the nodes start is found by the cluster's mark, whichever test it is for."""
        outer = {name: os.environ.get(name) for name in (MARK, "TMPDIR")}
        os.environ.update({MARK: self.mark, "TMPDIR": self.folder})
        try:
            yield
        finally:
            for name, value in outer.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


@pytest.fixture(scope="module")
def _nodes() -> Iterator[Nodes]:
    nodes = Nodes()
    try:
        yield nodes
    finally:
        left = nodes.close()
    assert not left, f"left behind by the cluster: {left}"


@pytest.fixture
def nodes(_nodes: Nodes, leaves_nothing_behind: str) -> Iterator[Nodes]:
    _nodes.fill_up()
    yield _nodes
    left = settled(_nodes.pool_processes)
    assert not left, f"left behind on the nodes: {left}"


@pytest.fixture
def eventually() -> Callable[[Callable[[], Any]], Any]:
    def wait(look: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + 60
        while not (found := look()):
            assert time.monotonic() < deadline, "it did not happen within a minute"
            time.sleep(0.05)
        return found

    return wait
