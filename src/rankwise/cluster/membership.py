"""Joins and leaves the Ray cluster, and lists its nodes."""

from __future__ import annotations

import importlib
import logging
import socket
import threading
from collections.abc import Mapping
from typing import Any

from rankwise.cluster.placement import ClusterNode, Resources
from rankwise.errors import UsageError
from rankwise.pool.errors import PoolError, no_worker

_LISTENS_S = 10.0
_joined = threading.Lock()
_pools = 0  # open pools that use a connection which one of them made


def ray_module() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UsageError('engine="ray" needs Ray, which is not installed', why=str(error), next=('pip install "rankwise[ray]"',)) from None


def connect(address: str | None) -> bool:
    """Connect; returns whether a pool made the connection. One that the program itself has made is used, and stays open at the end."""
    global _pools
    ray = ray_module()
    with _joined:
        if ray.is_initialized():
            _check_same(ray, address)
            _pools += bool(_pools)
            return bool(_pools)
        try:
            _check_listens(address)
            ray.init(address=address, logging_level=logging.WARNING)
        except (ConnectionError, ValueError, RuntimeError, OSError, ray.exceptions.RayError) as error:
            raise _not_joined(address, error) from error
        _pools = 1
        return True


def _check_listens(address: str | None) -> None:
    """Raise OSError at once if nothing listens there; Ray itself would try for minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), _LISTENS_S).close()


def _not_joined(address: str | None, error: BaseException) -> PoolError:
    """The error with Ray's own words, the first cause last: a cluster may refuse a missing token, or have other versions."""
    reasons = []
    cause: BaseException | None = error
    while cause is not None:
        lines = str(cause).strip().splitlines()
        reasons.append(" ".join(" ".join(lines[-1:] if "Traceback" in str(cause) else lines).split())[:300])
        cause = cause.__cause__
    where = f"at {address}" if address else "of this machine"
    steps = ("see whether it runs: ray status", "see that Ray's and Python's versions are those of the cluster: python -V; ray --version")
    return no_worker("\n".join([f"the Ray cluster {where} could not be joined", *dict.fromkeys(filter(None, reasons))]), instead=steps)


def disconnect() -> None:
    global _pools
    with _joined:
        _pools -= 1
        if not _pools:
            ray_module().shutdown()


def nodes() -> list[ClusterNode]:
    """The nodes that are alive."""
    alive = {node["NodeID"]: node["Resources"] for node in ray_module().nodes() if node["Alive"]}
    free = _free(alive)
    return [ClusterNode(node, _share(free[node]), _share(alive[node])) for node in alive if node in free]


def is_alive(node_id: str) -> bool:
    return any(node["NodeID"] == node_id and node["Alive"] for node in ray_module().nodes())


def _share(resources: Mapping[str, float]) -> Resources:
    return Resources(resources.get("CPU", 0.0), resources.get("GPU", 0.0), int(resources.get("memory", 0)))


def _free(alive: dict[str, Any]) -> dict[str, Any]:
    """The free resources of each node; if Ray does not tell (its function is private), all resources of each."""
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
