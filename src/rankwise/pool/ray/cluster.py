"""The Ray cluster: joins and leaves it, lists its nodes, and decides how many actors to start where, and with which resources.

Where no node is named, Ray chooses one.
"""

from __future__ import annotations

import importlib
import logging
import socket
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankwise.errors import UsageError
from rankwise.pool.errors import PoolError, no_worker
from rankwise.sizes import bytes_text

_LISTENS_S = 10.0
_joined = threading.Lock()
_pools = 0  # that are open and use a connection that one of them has made


@dataclass(frozen=True)
class Resources:
    """Cores, GPUs and memory: what a machine has, what is free of it, or what an actor asks for."""

    cpus: float = 0.0
    gpus: float = 0.0
    memory: int = 0  # bytes

    def holds(self, other: Resources) -> bool:
        return self.cpus >= other.cpus and self.gpus >= other.gpus and self.memory >= other.memory

    def __str__(self) -> str:
        parts = [
            f"{self.cpus:g} CPU",
            f"{self.gpus:g} GPU" if self.gpus else "",
            f"{bytes_text(self.memory)} of memory" if self.memory else "",
        ]
        return ", ".join(filter(None, parts))


@dataclass(frozen=True)
class ClusterNode:
    """A machine of the cluster that is alive."""

    id: str
    free: Resources
    all: Resources


@dataclass(frozen=True)
class Placement:
    """What an actor asks Ray for, and how many workers it has below it."""

    share: Resources
    workers: int
    threads: int
    node: str = ""  # empty: wherever Ray finds room

    def can_hold(self, need: Resources) -> bool:
        """Whether a model that needs this can be there; its cores are those of a worker."""
        return self.share.gpus >= need.gpus and self.share.memory >= need.memory


# ---- decisions


def fixed_placements(
    workers: int, needs: Sequence[Resources], nodes: Sequence[ClusterNode], present: Iterable[Placement]
) -> list[Placement]:
    """So many actors of one worker each, less those that are there. Ray spreads them, and asks its autoscaler for machines where it has to.

    Each has memory for all models, so that it may keep them, or for the largest where no machine has that much. Where only some
    models want a GPU, there is an actor with one for each GPU of the cluster, and the others do without.
    """
    cpus = max(need.cpus for need in needs)
    on_gpu, on_cpu = [need for need in needs if need.gpus], [need for need in needs if not need.gpus]
    memory = sum(need.memory for need in on_cpu)
    if not any(node.all.holds(Resources(cpus, 0.0, memory)) for node in nodes):
        memory = max((need.memory for need in on_cpu), default=0)
    with_gpu = workers if not on_cpu else min(workers, max(1, int(sum(node.all.gpus for node in nodes)))) if on_gpu else 0
    kinds = [Resources(cpus, 1.0, memory)] * with_gpu + [Resources(cpus, 0.0, memory)] * (workers - with_gpu)
    there = Counter(bool(placement.share.gpus) for placement in present)
    wanted = []
    for share in kinds:
        if there[bool(share.gpus)]:
            there[bool(share.gpus)] -= 1
        else:
            wanted.append(Placement(share, 1, int(cpus)))
    return wanted


def node_placements(needs: Sequence[Resources], nodes: Iterable[ClusterNode], taken: Iterable[str]) -> list[Placement]:
    """One for each machine that has none yet and can hold a model: all that is free there, or without its GPUs where no model wants one."""
    taken, threads = set(taken), int(max(need.cpus for need in needs))
    placements = []
    for node in nodes:
        able = [need for need in needs if node.free.holds(need)]
        if node.id in taken or not able:
            continue
        gpus = int(node.free.gpus) if any(need.gpus for need in able) else 0
        cores = int(node.free.cpus)
        workers = 2 * gpus if gpus else cores // threads  # two for a GPU: one computes while the other prepares
        memory = node.free.memory if any(need.memory for need in able) else 0
        placements.append(Placement(Resources(min(cores, max(1, workers * threads)), float(gpus), memory), workers, threads, node.id))
    return placements


def check_placeable(needs: Mapping[str, Resources], nodes: Sequence[ClusterNode], workers: int | str) -> str:
    """Raises where no machine has what a model needs, however idle. With a number of workers Ray knows what is wanted, and its autoscaler
    may bring a machine: then it is only told."""
    for model, need in needs.items():
        if any(node.all.holds(need) for node in nodes):
            continue
        machines = "; ".join(sorted({str(node.all) for node in nodes})) or "no machine that takes work"
        told = f"model {model!r} needs {need}, and no node of the Ray cluster has that: {machines}"
        if workers == "auto":
            raise no_worker(told)
        return told
    return ""


def spread_replicas(wanted: int, given: Mapping[int, int], workers: Mapping[int, int]) -> dict[int, int]:
    """How often each actor holds a model that there shall be `wanted` of: what was given stays, what is missing goes to the emptiest."""
    held = {actor: count for actor, count in given.items() if actor in workers}
    while sum(held.values()) < wanted:
        open_to = [actor for actor in workers if held.get(actor, 0) < workers[actor]]
        if not open_to:
            break
        least = min(open_to, key=lambda actor: (held.get(actor, 0) / workers[actor], actor))
        held[least] = held.get(least, 0) + 1
    return held


# ---- the cluster itself


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
            _check_listens(address)
            ray.init(address=address, logging_level=logging.WARNING)
        except (ConnectionError, ValueError, RuntimeError, OSError, ray.exceptions.RayError) as error:
            raise _not_joined(address, error) from error
        _pools = 1
        return True


def _check_listens(address: str | None) -> None:
    """OSError at once where nobody listens; Ray itself would try for minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), _LISTENS_S).close()


def _not_joined(address: str | None, error: BaseException) -> PoolError:
    """There may be one that lets nobody in without its token, or has other versions: Ray's own words say which, the first cause last."""
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
    """What is free of each node; where Ray does not tell (this name is not public), what each has."""
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
