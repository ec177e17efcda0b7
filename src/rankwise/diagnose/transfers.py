"""Sends and receives, counted on both sides: which of them the other rank has answered."""

from __future__ import annotations

from rankwise.evidence.records import Call, JobEvidence, RankEvidence

ASYNC_P2P = ("isend", "irecv", "batch_isend_irecv")


def has_answered(job: JobEvidence, rank: int, peer: int, op: str) -> bool:
    """The peer has begun as many receives from this rank as this rank has begun sends to it (or the reverse): its part is done."""
    mine, theirs = ("send", "recv") if "send" in op else ("recv", "send")
    evidence = job.ranks.get(peer)
    if evidence is None:
        return False
    return num_transfers(evidence, theirs, rank) >= num_transfers(job.ranks[rank], mine, peer) > 0


def unanswered_transfer(job: JobEvidence, rank: int) -> Call | None:
    """Of the sends and receives a rank has just begun (a batch, say), the one that the other side has no part in; receives first."""
    latest = []
    for call in reversed(job.ranks[rank].calls):
        if call.op not in ASYNC_P2P:
            break
        latest.append(call)
    open_ones = [call for call in latest if call.peer is not None and not has_answered(job, rank, call.peer, call.op)]
    return next((call for call in open_ones if "recv" in call.op), open_ones[0] if open_ones else None)


def num_transfers(evidence: RankEvidence, op: str, peer: int) -> int:
    """Sends to, or receives from, a peer; torch's `recv` calls its `irecv`, which is the same transfer and counts once."""
    count, busy_until = 0, 0
    for call in evidence.calls:
        if call.op.lstrip("i") == op and call.started_ns >= busy_until:
            count += call.peer == peer
            busy_until = call.ended_ns or call.started_ns + 1
    return count
