"""Sends without receives, and ranks that wait for each other in a circle."""

from __future__ import annotations

from dataclasses import replace

from rankwise.causes import load_cause
from rankwise.diagnose.history import has_unusual_step
from rankwise.diagnose.rank_state import P2P, RankStates, place_of, wait_of
from rankwise.diagnose.reasons import LeftLoops, find_left_loops
from rankwise.diagnose.transfers import latest_transfer, num_transfers
from rankwise.diagnose.waiting import doomed_ranks, is_transfer, members_of, needed_by
from rankwise.diagnose.wording import at, group_text
from rankwise.evidence.flight import GLOO_MARK, base_group
from rankwise.evidence.records import JobEvidence, RankEvidence
from rankwise.findings import Finding, ranks_text
from rankwise.source.book import SourceBook


def find_unmatched_p2p(job: JobEvidence, states: RankStates, book: SourceBook) -> Finding | None:
    doomed = doomed_ranks(job, states)
    for rank, state in sorted(states.items()):
        if rank not in doomed or state.op not in P2P or state.peer is None:
            continue
        peer = states.get(state.peer)
        if peer is None or peer.kind in ("elsewhere", "before_init", "init"):
            continue
        wanted = "recv" if "send" in state.op else "send"
        if is_transfer(job, states, rank, state.peer):
            continue
        tags = _tags(job, states, rank, state.peer)
        doing = "has ended" if peer.kind == "ended" else f"is in {peer.says}{at(peer.frame)}"
        sender, receiver = (rank, state.peer) if wanted == "recv" else (state.peer, rank)
        guilty, told = _who_departed(job, states, book, rank, state.peer)
        return load_cause("RW212").finding(
            f"rank {rank} waits in {state.op} {'to' if wanted == 'recv' else 'from'} rank {state.peer}, "
            f"which makes no matching {'recv (receive)' if wanted == 'recv' else 'send'}",
            certain=len(guilty) == 1 or peer.op in P2P,  # two that wait for each other are both part of it
            culprits=tuple(place_of(job.ranks[r], states[r].frame) for r in guilty),
            waiting=tuple(wait_of(states[r]) for r in sorted((doomed | {rank}) - set(guilty)) if states[r].kind == "waiting"),
            why=f"rank {rank} is{at(state.frame)}, rank {state.peer} {doing}{tags}{told}; every send needs its recv{_balance(job, sender, receiver)}",
            deadlock=True,
        )
    return None


def _who_departed(job: JobEvidence, states: RankStates, book: SourceBook, rank: int, peer: int) -> tuple[list[int], str]:
    """Of two ranks whose transfers do not fit: the one that left a loop the other is in, or did what it never did before; else both."""
    if states[peer].kind == "ended":
        return [peer], ""
    for inside, outside in ((rank, peer), (peer, rank)):
        left = find_left_loops(book, states[inside].stack, states[outside].stack)
        if left is not None and _was_in(job.ranks[outside], left):
            return [outside], f"; rank {outside} has left the loop of line {left.left[-1][1].start} that rank {inside} is still in"
    unusual = [r for r in (rank, peer) if has_unusual_step(job.ranks[r])]
    if len(unusual) == 1 and states[unusual[0]].op in P2P:  # one that is done with its transfers comes to something new as well
        return unusual, f"; rank {unusual[0]} came here by a way it did not take before"
    return [rank, peer], ""


def _was_in(evidence: RankEvidence, left: LeftLoops) -> bool:
    """True if the rank made calls in one of these loops itself: a loop of the other's own is none that it has left."""
    return any(left.are_around(frame) for call in evidence.calls for frame in call.stack)


def _tags(job: JobEvidence, states: RankStates, rank: int, peer: int) -> str:
    """Both sides' tags, where that is what keeps a send and a recv apart."""
    mine, theirs = latest_transfer(job.ranks[rank], states[rank].op, peer), latest_transfer(job.ranks[peer], states[peer].op, rank)
    if mine is None or theirs is None or mine.tag == theirs.tag or states[peer].kind != "waiting":
        return ""
    return f": rank {rank} uses tag {mine.tag or 0}, rank {peer} tag {theirs.tag or 0}"


def _balance(job: JobEvidence, sender: int, receiver: int) -> str:
    sends = num_transfers(job.ranks[sender], "send", receiver)
    receives = num_transfers(job.ranks[receiver], "recv", sender)
    return f": rank {sender} has called send to rank {receiver} {sends} times, rank {receiver} has called recv from it {receives} times"


def find_circle(job: JobEvidence, states: RankStates) -> list[int]:
    """Ranks that wait for each other in collectives of different groups; none without such a circle."""
    waiting = {rank: needed_by(job, states, rank) for rank in doomed_ranks(job, states)}
    for rank in sorted(waiting):
        path = [rank]
        while True:
            step = next((r for r in sorted(waiting.get(path[-1], ())) if r in waiting), None)
            if step is None:
                break
            if step in path:
                ring = path[path.index(step) :]
                if len({states[r].group for r in ring}) > 1:
                    return ring
                break
            path.append(step)
    return []


def find_crossed_queues(job: JobEvidence, states: RankStates) -> Finding | None:
    """On GPUs all ranks have queued everything; where each one's oldest collective waits for somebody whose oldest is another, they block."""
    heads = {rank: (state.group, state.seq) for rank, state in states.items() if state.kind == "waiting"}
    if len(heads) < len(states) or len({group for group, _ in heads.values()}) < 2:
        return None
    path = [min(heads)]
    while True:
        mine = heads[path[-1]]
        needed = [r for r in members_of(job, mine[0], path[-1]) if r != path[-1] and r in heads and heads[r] != mine]
        if not needed:
            return None
        if needed[0] in path:
            finding = circle_finding(job, states, path[path.index(needed[0]) :])
            return replace(finding, certain=False, deadlock=False, severity="warning")
        path.append(needed[0])


def circle_finding(job: JobEvidence, states: RankStates, ring: list[int]) -> Finding:
    """What is wrong with ranks that wait for each other in a circle: the order of their groups, or the device of their tensors."""
    if len({base_group(states[r].group) for r in ring}) == 1:
        return _different_backends(job, states, ring)
    told = "; ".join(
        f"rank {r} is in {states[r].says}{group_text(states[r].group) or ' of the default group'}{at(states[r].frame)}" for r in ring
    )
    return load_cause("RW218").finding(
        f"{ranks_text(ring)} wait for each other in collectives of different groups",
        certain=True,
        culprits=tuple(place_of(job.ranks[r], states[r].frame) for r in ring),
        why=f"ranks that share several groups must call the groups' collectives in the same order; {told}",
        deadlock=True,
    )


def _different_backends(job: JobEvidence, states: RankStates, ring: list[int]) -> Finding:
    """The same group, but one rank's tensor is on the CPU and another's on the GPU: the calls went to different backends."""
    on_cpu = {r: states[r].group.endswith(GLOO_MARK) for r in ring}
    told = "; ".join(
        f"rank {r} is in {states[r].says} of a {'CPU tensor (gloo)' if on_cpu[r] else 'CUDA tensor (nccl)'}{at(states[r].frame)}"
        for r in ring
    )
    return load_cause("RW202").finding(
        f"{ranks_text(ring)} call {states[ring[0]].op} on different devices, CPU (gloo) and CUDA (nccl)",
        certain=True,
        culprits=tuple(place_of(job.ranks[r], states[r].frame) for r in ring),
        why=f"with two backends a collective goes to the one of its tensor's device, and the two never meet: {told}",
        deadlock=True,
        instead=("put the tensor on the same device on every rank",),
    )
