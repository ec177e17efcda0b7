"""Who is hired where, and who holds which model: pure decisions. Which machine an actor gets, if not named here, is Ray's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rankwise.pool.ray.cluster import ClusterNode


@dataclass(frozen=True)
class Placement:
    """What an actor asks Ray for, and how many workers it has below it."""

    cpus: float
    gpus: float
    workers: int
    threads: int
    node: str = ""  # empty: wherever Ray finds room


def fixed_placements(workers: int, threads: int | None, wants_gpu: bool) -> list[Placement]:
    """As many actors as workers were asked for; Ray spreads them, and asks its autoscaler for more machines where it has to."""
    return [Placement(threads or 1, 1.0 if wants_gpu else 0.0, 1, threads or 1)] * workers


def node_placements(nodes: Iterable[ClusterNode], taken: Iterable[str], threads: int | None, wants_gpu: bool) -> list[Placement]:
    """One for each machine that has none yet and has something free: all that is free there."""
    taken = set(taken)
    placements = []
    for node in nodes:
        share = threads or 1
        workers = 2 * int(node.gpus) if wants_gpu else int(node.cpus) // share
        cpus = min(int(node.cpus), max(1, workers * share))
        if node.id not in taken and workers >= 1 and cpus >= 1:
            placements.append(Placement(cpus, float(int(node.gpus)) if wants_gpu else 0.0, workers, share, node.id))
    return placements


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
