"""How far a starting job is: which ranks have registered, which ones it waits for, and on which host they are."""

from __future__ import annotations

import os
from collections.abc import Iterable

from rankwise.launch.observe import Observer
from rankwise.launch.peers import Peer
from rankwise.meet.roster import missing_numbers, waiting_text
from rankwise.stages import BACKEND


def starting_text(observer: Observer, other_nodes: Iterable[Peer], now_ns: int) -> str:
    """`3 of 4 ranks registered, waiting for rank 2 on node-b, 14 s`; empty when no rank on this node waits for the start."""
    journals = [journal for pid, journal in observer.journals.items() if journal.inits and observer.is_alive(pid)]
    waiting = [journal.inits[-1].started_ns for journal in journals if not journal.inits[-1].ended_ns]
    world_size = max((journal.world_size or 0 for journal in journals), default=0)
    if not waiting or not world_size:
        return ""
    hosts = dict.fromkeys(observer.rank_pids(), os.uname().nodename)
    joined = joined_ranks(observer)
    for node in other_nodes:
        hosts |= dict.fromkeys(node.ranks, node.host)
        joined |= set(node.joined)
    return waiting_text(missing_numbers(joined, world_size), hosts, world_size, (now_ns - min(waiting)) / 1e9, then=BACKEND.done)


def joined_ranks(observer: Observer) -> set[int]:
    """The ranks of this node that have called init_process_group."""
    return {
        rank
        for rank, pids in observer.rank_pids().items()
        if any(pid in observer.journals and observer.journals[pid].inits for pid in pids)
    }
