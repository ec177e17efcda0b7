"""How far a starting job is: which ranks have registered, which ones it waits for, and on which host they are."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from rankwise.launch.observe import Observer
from rankwise.launch.peers import Peer
from rankwise.meet.roster import missing_numbers, waiting_text
from rankwise.stages import BACKEND


@dataclass(frozen=True)
class StartProgress:
    """Where the ranks are that are known of, which of them have called init_process_group, and since when one of them waits there."""

    world_size: int = 0
    hosts: dict[int, str] = field(default_factory=dict)
    joined: frozenset[int] = frozenset()
    waiting_since_ns: int | None = None  # None when nobody on this node waits


def find_start_progress(observer: Observer, other_nodes: Iterable[Peer]) -> StartProgress:
    journals = [journal for pid, journal in observer.journals.items() if journal.inits and observer.is_alive(pid)]
    waiting = [journal.inits[-1].started_ns for journal in journals if not journal.inits[-1].ended_ns]
    hosts = dict.fromkeys(observer.rank_pids(), os.uname().nodename)
    joined = joined_ranks(observer)
    for node in other_nodes:
        hosts |= dict.fromkeys(node.ranks, node.host)
        joined |= set(node.joined)
    world_size = max((journal.world_size or 0 for journal in journals), default=0)
    return StartProgress(world_size, hosts, frozenset(joined), min(waiting, default=None))


def joined_ranks(observer: Observer) -> set[int]:
    """The ranks of this node that have called init_process_group."""
    return {
        rank
        for rank, pids in observer.rank_pids().items()
        if any(pid in observer.journals and observer.journals[pid].inits for pid in pids)
    }


def starting_text(progress: StartProgress, now_ns: int) -> str:
    """`3 of 4 ranks registered, waiting for rank 2 on node-b, 14 s`; empty when nobody waits for the start."""
    if progress.waiting_since_ns is None or not progress.world_size:
        return ""
    missing = missing_numbers(progress.joined, progress.world_size)
    return waiting_text(missing, progress.hosts, progress.world_size, (now_ns - progress.waiting_since_ns) / 1e9, then=BACKEND.done)
