"""Sends and receives, counted on both sides: which of them the other rank has answered."""

from __future__ import annotations

from rankwise.evidence.records import Call, JobEvidence, RankEvidence

_FOR_EVER = 1 << 64
ASYNC_P2P = ("isend", "irecv", "batch_isend_irecv")


def has_answered(job: JobEvidence, rank: int, call: Call | None) -> bool:
    """Whether the peer has done its part: it has begun as many receives from this rank as this rank began sends to it, or the reverse."""
    evidence = job.ranks.get(call.peer) if call is not None and call.peer is not None else None
    if call is None or call.peer is None or evidence is None:
        return False
    mine, theirs = ("send", "recv") if "send" in call.op else ("recv", "send")
    return num_transfers(evidence, theirs, rank, call.tag) >= num_transfers(job.ranks[rank], mine, call.peer, call.tag) > 0


def latest_transfer(evidence: RankEvidence, op: str, peer: int | None) -> Call | None:
    """The last send to, or receive from, a peer."""
    kind = "send" if "send" in op else "recv"
    return next((call for call in reversed(evidence.calls) if call.op.lstrip("i") == kind and call.peer == peer), None)


def unanswered_transfer(job: JobEvidence, rank: int) -> Call | None:
    """The send or receive that a rank has just begun and the other side has not answered; receives first."""
    latest = []
    for call in reversed(job.ranks[rank].calls):
        if call.op not in ASYNC_P2P:
            break
        latest.append(call)
    open_ones = [call for call in latest if call.peer is not None and not has_answered(job, rank, call)]
    return next((call for call in open_ones if "recv" in call.op), open_ones[0] if open_ones else None)


def num_transfers(evidence: RankEvidence, op: str, peer: int, tag: str = "") -> int:
    """Sends to, or receives from, a peer; torch's `recv` calls its `irecv`, which is the same transfer and counts once."""
    count, busy_until = 0, 0
    for call in evidence.calls:
        if call.op.lstrip("i") == op and call.started_ns >= busy_until:
            count += call.peer == peer and call.tag == tag
            busy_until = call.ended_ns or _FOR_EVER
    return count
