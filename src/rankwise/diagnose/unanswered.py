"""Transfers on a GPU's stream that do not fit: nothing proves the deadlock, for the calls have returned, but the counts and sizes tell."""

from __future__ import annotations

from math import prod

from rankwise.causes import load_cause
from rankwise.diagnose.rank_state import P2P, RankStates, lists_its_transfers, place_of, wait_of
from rankwise.diagnose.transfers import unanswered_transfer
from rankwise.diagnose.wording import at
from rankwise.evidence.frames import user_frame
from rankwise.evidence.records import Call, JobEvidence, RankEvidence
from rankwise.findings import Finding


def find_unanswered(job: JobEvidence, states: RankStates) -> Finding | None:
    """All ranks wait, some in sends or receives: the first that got stuck, and what the other side does not do."""
    waiting = [rank for rank, state in states.items() if state.kind == "waiting"]
    if (
        len(waiting) < len(states)
        or not any(states[rank].op in P2P for rank in waiting)
        or any(e.num_forgotten or lists_its_transfers(e) for e in job.ranks.values())
    ):
        return None
    return _other_size(job, states) or _without_partner(job, states)


def _without_partner(job: JobEvidence, states: RankStates) -> Finding | None:
    """The rank that is furthest behind has begun a transfer that its peer has no part in; those ahead of it wait for it."""
    open_ones = {rank: call for rank in states if (call := unanswered_transfer(job, rank)) is not None and call.peer in states}
    if not open_ones:
        return None
    begun = {rank: sum(call.op in P2P for call in job.ranks[rank].calls if call.peer is not None) for rank in open_ones}
    new = [rank for rank, call in open_ones.items() if _is_new_peer(job.ranks[rank], call)]
    rank = new[0] if len(new) == 1 else min(open_ones, key=lambda one: (begun[one], one))
    reason = (
        "it made such transfers before, and never with this rank"
        if len(new) == 1
        else f"it began {begun[rank]} transfers, fewer than the ranks that wait for it"
    )
    call, is_send = open_ones[rank], "send" in open_ones[rank].op
    return load_cause("RW212").finding(
        f"rank {rank} waits in {call.op} {'to' if is_send else 'from'} rank {call.peer}, which makes no matching {'recv' if is_send else 'send'}",
        certain=False,
        culprits=(place_of(job.ranks[rank], user_frame(call.stack)),),
        waiting=tuple(wait_of(states[other]) for other in states if other != rank),
        why=f"{reason}; the last ones{at(user_frame(call.stack))} "
        f"have no partner on rank {call.peer}: another neighbour, or one send or receive too many",
        instead=("compare whom each rank sends to and receives from in this exchange",),
    )


def _is_new_peer(evidence: RankEvidence, last: Call) -> bool:
    """The rank made such transfers before, always with other ranks."""
    before = {call.peer for call in evidence.calls if call is not last and call.op == last.op and call.stack == last.stack}
    return bool(before) and last.peer not in before


def _other_size(job: JobEvidence, states: RankStates) -> Finding | None:
    """The n-th send to a rank and its n-th receive are the same transfer, and must be of the same size."""
    for sender, evidence in job.ranks.items():
        for receiver in states:
            pairs = zip(_of(evidence, "send", receiver), _of(job.ranks[receiver], "recv", sender), strict=False)
            for number, (sent, received) in enumerate(pairs, 1):
                if sent.dtype and received.dtype and prod(sent.sizes) != prod(received.sizes):
                    return _sizes_finding(job, sender, receiver, number, sent, received)
    return None


def _sizes_finding(job: JobEvidence, sender: int, receiver: int, number: int, sent: Call, received: Call) -> Finding:
    places = {sender: user_frame(sent.stack), receiver: user_frame(received.stack)}
    return load_cause("RW212").finding(
        f"rank {sender} sends {list(sent.sizes)} to rank {receiver}, which receives {list(received.sizes)}",
        certain=False,
        culprits=tuple(place_of(job.ranks[rank], frame) for rank, frame in places.items()),
        why=f"transfer {number} between them: sent{at(places[sender])}, received{at(places[receiver])}; transfers are matched in order",
        instead=("send and receive in the same order on both sides",),
    )


def _of(evidence: RankEvidence, kind: str, peer: int) -> list[Call]:
    return [call for call in evidence.calls if call.op.lstrip("i") == kind and call.peer == peer]
