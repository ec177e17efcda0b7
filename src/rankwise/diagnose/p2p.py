"""Sends and receives: one without the other, ranks that wait for each other in a circle, transfers of different sizes."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from rankwise.causes import load_cause
from rankwise.diagnose.blame import Blame, Side, by_rank_condition, finding_of
from rankwise.diagnose.history import has_unusual_step, key_of
from rankwise.diagnose.rank_state import P2P, RankStates, ended_well, lists_its_transfers, place_at, wait_of
from rankwise.diagnose.reasons import LeftLoops, find_left_loops, find_skips, reasons_text
from rankwise.diagnose.transfers import latest_transfer, num_transfers, unanswered_transfer
from rankwise.diagnose.waiting import doomed_ranks, is_transfer, members_of, needed_by
from rankwise.diagnose.wording import at, group_text
from rankwise.evidence.flight import GLOO_MARK, base_group
from rankwise.evidence.frames import user_frame
from rankwise.evidence.records import Call, JobEvidence, RankEvidence
from rankwise.findings import Finding, ranks_text
from rankwise.source.book import SourceBook


def find_unmatched_p2p(job: JobEvidence, states: RankStates, book: SourceBook) -> Finding | None:
    doomed = doomed_ranks(job, states)
    for rank, state in sorted(states.items()):
        if rank not in doomed or state.op not in P2P or state.peer is None:
            continue
        peer = states.get(state.peer)
        if peer is None or peer.kind in ("busy", "before_init", "init"):
            continue
        wanted = "recv" if "send" in state.op else "send"
        if is_transfer(job, states, rank, state.peer):
            continue
        if (found := _beside_a_collective(job, states, book, rank, state.peer)) is not None:
            return found
        tags = _tags(job, states, rank, state.peer)
        doing = "has ended" if peer.kind == "ended" else f"is in {peer.op_text}{at(peer.frame)}"
        sender, receiver = (rank, state.peer) if wanted == "recv" else (state.peer, rank)
        guilty, departure = _who_departed(job, states, book, rank, state.peer)
        return load_cause("RW212").finding(
            f"rank {rank} waits in {state.op} {'to' if wanted == 'recv' else 'from'} rank {state.peer}, "
            f"which makes no matching {'recv (receive)' if wanted == 'recv' else 'send'}",
            certain=len(guilty) == 1 or peer.op in P2P,  # two ranks that wait for each other are both part of it
            culprits=tuple(place_at(job.ranks[r], states[r].frame) for r in guilty),
            waiting=tuple(wait_of(states[r]) for r in sorted((doomed | {rank}) - set(guilty)) if states[r].kind == "waiting"),
            why=f"rank {rank} is{at(state.frame)}, rank {state.peer} {doing}{tags}{departure}; every send needs its recv{_balance(job, sender, receiver)}",
            deadlock=True,
        )
    return None


def _beside_a_collective(job: JobEvidence, states: RankStates, book: SourceBook, rank: int, peer: int) -> Finding | None:
    """The peer answered such transfers before, and is now in a collective that this rank never came to: that collective is one too many."""
    state, other = states[rank], states[peer]
    call = next((call for call in reversed(job.ranks[peer].calls) if call.is_open), None)
    if call is None or other.op in P2P or rank not in needed_by(job, states, peer):
        return None
    latest = latest_transfer(job.ranks[rank], state.op, peer)
    answers = num_transfers(job.ranks[peer], "recv" if "send" in state.op else "send", rank, latest.tag) if latest else 0
    if not answers or any(key_of(one) == key_of(call) for one in job.ranks[rank].calls):
        return None
    here, there = (Side.at([one.rank], one) for one in (state, other))
    blame = by_rank_condition(job, book, [there, here])
    if blame is None or blame.code != "RW208" or blame.ranks != [peer]:
        told = [reason for reason in find_skips(book, here.stack, there.stack) if reason.kind == "condition"]
        if not told:
            return None
        why = f"{there.text}{at(other.frame)} is made {reasons_text(told)}; rank {rank} never came to it"
        blame = Blame("RW208", [peer], why, None, False, tuple(reason.frame for reason in told[:4]))
    summary = f"only rank {peer} called {there.short_text}; rank {rank} waits in {here.op}"
    waiting = tuple(wait_of(states[r]) for r in sorted(doomed_ranks(job, states) - {peer}))
    return replace(finding_of(job, states, blame, [here, there], summary), waiting=waiting)


def _who_departed(job: JobEvidence, states: RankStates, book: SourceBook, rank: int, peer: int) -> tuple[list[int], str]:
    """Which of two ranks with unmatched transfers left the loop the other is in, or did what it never did before; both where that is not known."""
    if states[peer].kind == "ended":
        latest = latest_transfer(job.ranks[rank], states[rank].op, peer)
        answers = num_transfers(job.ranks[peer], "recv" if "send" in states[rank].op else "send", rank, latest.tag) if latest else 0
        if answers and ended_well(job.ranks[peer].ended):
            return [rank, peer], f" well, after {answers} such transfers: it went fewer rounds, or rank {rank} goes too many"
        return [peer], ""
    for inside, outside in ((rank, peer), (peer, rank)):
        left = find_left_loops(book, states[inside].stack, states[outside].stack)
        if left is not None and _was_in(job.ranks[outside], left):
            return [outside], f"; rank {outside} has left the loop of line {left.left[-1][1].start} that rank {inside} is still in"
    unusual = [r for r in (rank, peer) if has_unusual_step(job.ranks[r])]
    if len(unusual) == 1 and states[unusual[0]].op in P2P:  # a rank that is done with its transfers also comes to something new
        return unusual, f"; rank {unusual[0]} came here by a way it did not take before"
    return [rank, peer], ""


def _was_in(evidence: RankEvidence, left: LeftLoops) -> bool:
    """True if the rank made calls in one of these loops itself: a loop that only the other runs is not one it has left."""
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
    """Ranks that wait for each other in collectives of different groups; empty where there is no such circle."""
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
    """Ranks whose queues block each other on GPUs: the oldest collective of each waits for a rank whose oldest collective is another one."""
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
    """The finding for ranks that wait for each other in a circle: because of the order of their groups, or the device of their tensors."""
    if len({base_group(states[r].group) for r in ring}) == 1:
        devices = {r: "CPU tensor (gloo)" if states[r].group.endswith(GLOO_MARK) else "CUDA tensor (nccl)" for r in ring}
        code, of_what = "RW202", {r: f" of a {device}" for r, device in devices.items()}
        summary = f"{ranks_text(ring)} call {states[ring[0]].op} on different devices, CPU (gloo) and CUDA (nccl)"
        why = "with two backends a collective goes to the one of its tensor's device, and the two never meet:"
        instead: tuple[str, ...] = ("put the tensor on the same device on every rank",)
    else:
        code, of_what = "RW218", {r: group_text(states[r].group) or " of the default group" for r in ring}
        summary = f"{ranks_text(ring)} wait for each other in collectives of different groups"
        why, instead = "ranks that share several groups must call the groups' collectives in the same order;", ()
    calls = "; ".join(f"rank {r} is in {states[r].op_text}{of_what[r]}{at(states[r].frame)}" for r in ring)
    return load_cause(code).finding(
        summary,
        certain=True,
        culprits=tuple(place_at(job.ranks[r], states[r].frame) for r in ring),
        why=f"{why} {calls}",
        deadlock=True,
        instead=instead,
    )


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
        culprits=(place_at(job.ranks[rank], user_frame(call.stack)),),
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
                    at_sender, at_receiver = user_frame(sent.stack), user_frame(received.stack)
                    return load_cause("RW212").finding(
                        f"rank {sender} sends {list(sent.sizes)} to rank {receiver}, which receives {list(received.sizes)}",
                        certain=False,
                        culprits=(place_at(evidence, at_sender), place_at(job.ranks[receiver], at_receiver)),
                        why=f"transfer {number} between them: sent{at(at_sender)}, received{at(at_receiver)}; transfers are matched in order",
                        instead=("send and receive in the same order on both sides",),
                    )
    return None


def _of(evidence: RankEvidence, kind: str, peer: int) -> list[Call]:
    return [call for call in evidence.calls if call.op.lstrip("i") == kind and call.peer == peer]
