"""Decides how many actors to start where, with which resources, and which actors hold a model. Without a named node, Ray chooses one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rankwise.pool.errors import no_worker
from rankwise.sizes import bytes_text


@dataclass(frozen=True)
class Resources:
    """Cores, GPUs and memory: of a machine, of the free part of it, or of an actor's request."""

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
    node: str = ""  # empty: Ray chooses

    def can_hold(self, need: Resources) -> bool:
        """Whether a model with this need can be there; its cores are those of a worker, so they are not compared."""
        return self.share.gpus >= need.gpus and self.share.memory >= need.memory


def fixed_placements(
    workers: int, needs: Sequence[Resources], nodes: Sequence[ClusterNode], present: Iterable[Placement]
) -> list[Placement]:
    """So many actors of one worker each, without those that exist. Ray spreads them, and asks its autoscaler for machines if it has to.

    Each has memory for all models, so that it may keep them; or for the largest model, if no machine has that much. If only some
    models want a GPU, there is one actor with a GPU for each GPU of the cluster, and the others have none.
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
    """One actor for each machine that has none yet and can hold a model: all that is free there, but GPUs only if a model wants one."""
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
    """Raise if no machine, however idle, has what a model needs. With a fixed number of workers, Ray's autoscaler may still bring such a
    machine, so the message is only returned."""
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
    """How often each actor holds a model of `wanted` replicas. Replicas that were given stay; missing ones go to the emptiest actors."""
    held = {actor: count for actor, count in given.items() if actor in workers}
    while sum(held.values()) < wanted:
        open_to = [actor for actor in workers if held.get(actor, 0) < workers[actor]]
        if not open_to:
            break
        least = min(open_to, key=lambda actor: (held.get(actor, 0) / workers[actor], actor))
        held[least] = held.get(least, 0) + 1
    return held
