"""What is known of another node, and the evidence of all nodes merged into one job."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field, replace
from typing import Any

from rankwise.evidence.records import Ended, JobEvidence, RankEvidence
from rankwise.launch.node_messages import UNREADABLE, unpack_job


@dataclass
class Peer:
    """What is known of another node."""

    number: int
    host: str = ""
    ranks: dict[int, int] = field(default_factory=dict)  # rank: pid
    joined: tuple[int, ...] = ()  # of those, the ranks that have called init_process_group
    serial: int = -1
    ask: int = 0
    depth: str = "flight"
    answers: dict[int, int] = field(default_factory=dict)  # node: the last of its questions that the snapshot answers
    version: int = 0
    is_final: bool = False
    code: int | None = None
    beats: dict[str, int] = field(default_factory=dict)  # channel: the last beat seen there
    first_ns: int = 0
    heard_s: float = 0.0
    heard_ns: int = 0
    num_polls: int = 0  # looks since its last beat
    fetched: int = 0
    snapshot: bytes = b""
    read: tuple[int, JobEvidence | None] = (0, None)  # the version of the snapshot that was unpacked, and its evidence

    def take_status(self, channel: str, text: str, now_s: float, now_ns: int) -> None:
        """Take the node's status from a channel; a status that is older than the known one, or unreadable, changes nothing."""
        try:
            facts = json.loads(text)
            beat, serial = int(facts["beat"]), int(facts.get("serial", 0))
        except UNREADABLE:
            return
        self.num_polls += 1
        if self.beats.get(channel) != beat:
            self.beats[channel], self.heard_s, self.heard_ns, self.num_polls = beat, now_s, now_ns, 0
            self.first_ns = self.first_ns or now_ns
        if serial > self.serial:
            with contextlib.suppress(*UNREADABLE):
                vars(self).update(_read_status(facts), serial=serial)

    def has_answered(self, number: int, ask: int) -> bool:
        """True if its snapshot is here and was made after the question; after its end nothing changes any more."""
        return self.fetched >= self.version > 0 and (self.is_final or self.answers.get(number, 0) >= ask)

    def evidence(self) -> JobEvidence | None:
        """What the node saw of its own ranks; None if it sent nothing, or nothing that could be read."""
        if self.read[0] != self.fetched:
            self.read = (self.fetched, unpack_job(self.snapshot))
        return self.read[1]


def _read_status(facts: dict[str, Any]) -> dict[str, Any]:
    """A peer's status as the fields of `Peer`; raises one of UNREADABLE for a damaged one."""
    return {
        "host": str(facts.get("host", ""))[:255],
        "ranks": {int(rank): int(pid) for rank, pid in facts.get("ranks", {}).items()},
        "joined": tuple(int(rank) for rank in facts.get("joined", ())),
        "ask": int(facts.get("ask", 0)),
        "depth": "deep" if facts.get("depth") == "deep" else "flight",
        "answers": {int(number): int(ask) for number, ask in facts.get("answers", {}).items()},
        "version": int(facts.get("version", 0)),
        "is_final": facts.get("final") is True,
        "code": int(facts["code"]) if facts.get("code") is not None else None,
    }


def merge_jobs(mine: JobEvidence, others: list[JobEvidence], lost_hosts: tuple[str, ...] = ()) -> JobEvidence:
    """The evidence of the whole job; facts about this node alone (command, launchers, times) are taken from `mine`."""
    ranks = dict(mine.ranks)
    duplicates = list(mine.duplicates)
    for other in others:
        duplicates += other.duplicates
        for rank, evidence in other.ranks.items():
            kept, spare = _newer_first(ranks.get(rank, evidence), evidence)
            ranks[rank] = kept
            if spare is not kept and _were_together(kept, spare):
                duplicates.append(spare)
    sizes = [job.world_size for job in (mine, *others) if job.world_size]
    sources: dict[str, str] = {}
    for job in (*others, mine):
        sources.update(job.sources)
    return replace(
        mine,
        world_size=mine.world_size or max(sizes, default=None),
        ranks=dict(sorted(ranks.items())),
        duplicates=tuple(duplicates),
        hosts=(*mine.hosts, *(host for other in others for host in other.hosts)),
        sources=sources,
        restarts=max(job.restarts for job in (mine, *others)),
        lost_hosts=lost_hosts,
        blind=tuple(dict.fromkeys(spot for job in (mine, *others) for spot in job.blind)),
    )


def _newer_first(a: RankEvidence, b: RankEvidence) -> tuple[RankEvidence, RankEvidence]:
    """Two processes of one rank, the present one first: a rank may move to another node at a restart."""
    return (a, b) if (a.restarts, a.alive, a.started_ns) >= (b.restarts, b.alive, b.started_ns) else (b, a)


def _were_together(kept: RankEvidence, spare: RankEvidence) -> bool:
    return kept.restarts == spare.restarts and (spare.alive or (spare.ended is not None and spare.ended.time_ns > kept.started_ns))


def lost_job(peer: Peer) -> JobEvidence:
    """The evidence of a node that is gone: its last snapshot, if there was one, and the ranks it was known to run."""
    seen = peer.evidence() or JobEvidence((), 0, peer.heard_ns, None, 0.0, {})
    gone = Ended("vanished", peer.heard_ns)
    known = {rank: seen.ranks.get(rank) or RankEvidence(rank, pid, peer.host) for rank, pid in peer.ranks.items()}
    ranks = {
        rank: evidence if evidence.ended is not None else replace(evidence, alive=False, ended=gone, host=peer.host)
        for rank, evidence in {**seen.ranks, **known}.items()
    }
    return replace(seen, ranks=ranks)
