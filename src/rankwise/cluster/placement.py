"""Decides how many actors to start where, and with which resources, and who holds a model. Where no node is named, Ray chooses one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rankwise.pool.errors import no_worker
from rankwise.sizes import bytes_text


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
