"""Joins a Ray cluster, looks at its nodes, and leaves it when the last pool that joined is closed."""

from __future__ import annotations

import importlib
import logging
import threading
from dataclasses import dataclass
from typing import Any

from rankwise.errors import UsageError
from rankwise.pool.errors import no_worker

_joined = threading.Lock()
_pools = 0  # that are open and use a connection that one of them has made


@dataclass(frozen=True)
class ClusterNode:
    """A machine of the cluster, and what nobody uses of it now."""

    id: str
    cpus: float
    gpus: float


def ray_module() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UsageError('engine="ray" needs Ray, which is not installed', why=str(error), next=('pip install "rankwise[ray]"',)) from None


def connect(address: str | None) -> bool:
    """Whether the connection is a pool's own. One that the program has made is used, and left alone at the end."""
    global _pools
    ray = ray_module()
    with _joined:
        if ray.is_initialized():
            _check_same(ray, address)
            _pools += bool(_pools)
            return bool(_pools)
        try:
            ray.init(address=address, logging_level=logging.WARNING)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            where = f"at {address}" if address else "here"
            raise no_worker(f"there is no Ray cluster {where}: {str(error).splitlines()[0]}") from error
        _pools = 1
        return True


def disconnect() -> None:
    global _pools
    with _joined:
        _pools -= 1
        if not _pools:
            ray_module().shutdown()


def nodes() -> list[ClusterNode]:
    """Those that are alive."""
    ray = ray_module()
    alive = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    free = _free(alive)
    return [ClusterNode(node, free[node].get("CPU", 0.0), free[node].get("GPU", 0.0)) for node in alive if node in free]


def is_alive(node_id: str) -> bool:
    return any(node["NodeID"] == node_id and node["Alive"] for node in ray_module().nodes())


def all_gpus() -> int:
    return int(ray_module().cluster_resources().get("GPU", 0))


def _free(alive: dict[str, Any]) -> dict[str, Any]:
    """What is free of each node; where Ray does not tell (this is no public name of it), what each has."""
    try:
        from ray._private.state import available_resources_per_node
    except ImportError:
        return alive
    found: dict[str, Any] = available_resources_per_node()
    return found


def _check_same(ray: Any, address: str | None) -> None:
    own = ray.get_runtime_context().gcs_address
    if address not in (None, "auto", own):
        raise UsageError(
            f"this program is connected to the Ray cluster at {own}, not to {address}",
            why="a process can be in one cluster at a time",
            next=(f'give address="{own}", or none', "or ray.shutdown() first"),
        )
