"""Which ranks wait for which: the members of a group, the ranks that have not arrived, and the ranks that can never go on."""

from __future__ import annotations

from rankwise.diagnose.match import last_seq, op_at
from rankwise.diagnose.rank_state import P2P, RankState, RankStates
from rankwise.diagnose.transfers import has_answered, latest_transfer
from rankwise.evidence.flight import base_group
from rankwise.evidence.records import JobEvidence

_MAX_WORLD = 1 << 20  # a larger world size is damaged evidence, not a job


def members_of(job: JobEvidence, group: str, rank: int | None = None) -> list[int]:
    """The ranks of a group, as far as they are known; `rank`'s own record counts first, since a name may be another group elsewhere."""
    group = base_group(group)
    if group == "0":
        return sorted(set(range(min(job.world_size or 0, _MAX_WORLD))) | set(job.ranks))
    own = [job.ranks[rank]] if rank is not None and rank in job.ranks else []
    for evidence in [*own, *(job.ranks[r] for r in sorted(job.ranks))]:
        for made in evidence.groups:
            if made.name == group and made.ranks:
                return sorted(made.ranks)
    return sorted(rank for rank, evidence in job.ranks.items() if group in evidence.collectives.groups())


def needed_by(job: JobEvidence, states: RankStates, rank: int) -> set[int]:
    """The ranks that a waiting rank waits for: members that have not arrived where it is."""
    state = states[rank]
    if state.kind != "waiting" or state.op == "destroy_process_group":  # it needs no other rank, however long it takes
        return set()
    if state.op in P2P:
        peer = state.peer
        transfer = latest_transfer(job.ranks[rank], state.op, peer)
        is_met = peer is None or is_transfer(job, states, rank, peer) or has_answered(job, rank, transfer)
        return set() if peer is None or is_met else {peer}
    if state.op == "new_group":
        mine = len(job.ranks[rank].groups)
        return {r for r in job.ranks if r != rank and len(job.ranks[r].groups) < mine}
    return _missing_in(job, states, state) - {rank}


def _missing_in(job: JobEvidence, states: RankStates, state: RankState) -> set[int]:
    """The ranks that have not arrived in a slot: worked out once for all ranks that wait in it."""
    # The same name may be another group on other ranks, so its members are part of the slot; the default group is the same for all.
    group = () if base_group(state.group) == "0" else tuple(members_of(job, state.group, state.rank))
    slot = (state.op, state.group, state.seq, state.inside if state.seq is None else "", group)
    if slot not in states.missing:
        members = group or members_of(job, state.group)
        states.missing[slot] = {r for r in members if r != state.rank and not has_arrived(job, states, r, state)}
    return states.missing[slot]


def is_transfer(job: JobEvidence, states: RankStates, rank: int, peer: int) -> bool:
    """Whether a send and a recv have found each other: then the bytes are on their way, and both need no other rank."""
    state, other = states[rank], states.get(peer)
    wanted = "recv" if "send" in state.op else "send"
    if other is None or other.kind != "waiting" or other.peer not in (rank, None):
        return False
    if other.op == "batch_isend_irecv":
        return True
    mine, theirs = latest_transfer(job.ranks[rank], state.op, peer), latest_transfer(job.ranks[peer], other.op, rank)
    return wanted in other.op and (mine.tag if mine else "") == (theirs.tag if theirs else "")


def has_arrived(job: JobEvidence, states: RankStates, rank: int, state: RankState) -> bool:
    evidence = job.ranks.get(rank)
    if evidence is None:
        return False
    other = states[rank]
    if state.seq is not None and not evidence.collectives.is_partial:
        there = op_at(evidence.collectives, state.group, state.seq)
        return last_seq(evidence.collectives, state.group) >= state.seq and there in ("", state.op)
    if other.kind == "waiting" and (other.op, other.group) == (state.op, state.group):
        return True
    mine, theirs = (_num_calls(job, r, state) for r in (state.rank, rank))
    return theirs >= mine > 0


def _num_calls(job: JobEvidence, rank: int, state: RankState) -> int:
    """How often a rank called this collective from Python: comparable where torch's own record is missing on one side."""
    op = state.inside or state.op
    if state.group == "0":
        return job.ranks[rank].counts.get(op, 0)
    return sum(call.op == op and call.group == state.group for call in job.ranks[rank].calls)


def doomed_ranks(job: JobEvidence, states: RankStates) -> set[int]:
    """The waiting ranks that can never go on: each needs a rank that is gone, or one that is doomed itself.

    The greatest such set: waits in a circle stay in it, a wait for a rank that still moves (or for no rank) drops out.
    """
    if states.doomed is not None:
        return states.doomed
    doomed = {rank for rank, state in states.items() if state.kind == "waiting" and state.op != "unknown"}
    needs = {rank: needed_by(job, states, rank) for rank in doomed}
    gone = {rank for rank, state in states.items() if state.kind == "ended"}
    while True:
        free = {rank for rank in doomed if not needs[rank] & (doomed | gone)}
        if not free:
            states.doomed = doomed
            return doomed
        doomed -= free
