"""Ranks that disagree about what comes next: different collectives in a slot, skipped ones, ranks that left."""

from __future__ import annotations

from rankwise.causes import load_cause
from rankwise.diagnose.blame import (
    COMPARE,
    Blame,
    Side,
    by_rank_condition,
    finding_of,
)
from rankwise.diagnose.different_calls import finding_of_sides, merged
from rankwise.diagnose.divergence import blame_for_divergence, side_of
from rankwise.diagnose.groups import find_group_disagreement
from rankwise.diagnose.history import Divergence, find_divergence, was_called
from rankwise.diagnose.p2p import circle_finding, find_circle, find_unmatched_p2p
from rankwise.diagnose.rank_state import P2P, RankStates, end_of, last_call_frame, place_at, wait_of
from rankwise.diagnose.same_slot import find_slot_disagreement
from rankwise.diagnose.splits import find_split_disagreement
from rankwise.diagnose.waiting import doomed_ranks, needed_by
from rankwise.diagnose.wording import at, verb
from rankwise.evidence.flight import base_group
from rankwise.evidence.records import JobEvidence
from rankwise.findings import Finding, ranks_text
from rankwise.source.book import SourceBook

_LEAVING = "a rank that leaves takes its part of every further collective with it"


def find_disagreement(job: JobEvidence, states: RankStates, book: SourceBook) -> Finding | None:
    """The first disagreement between ranks, if there is one."""
    return (
        find_group_disagreement(job, states)
        or find_slot_disagreement(job, states, book)
        or find_split_disagreement(job, states)
        or _missing_in_slot(job, states, book)
        or find_unmatched_p2p(job, states, book)
        or _circular_wait(job, states, book)
    )


# -- a circle of groups -------------------------------------------------------------------------------------------------------


def _circular_wait(job: JobEvidence, states: RankStates, book: SourceBook) -> Finding | None:
    """Ranks that wait for each other in different groups: one side made a call that the others never make, or their orders differ."""
    ring = find_circle(job, states)
    if not ring:
        return None
    by_group: dict[str, list[int]] = {}
    for rank, state in sorted(states.items()):
        if state.kind == "waiting":
            by_group.setdefault(state.group, []).append(rank)
    sides = merged([Side.at(ranks, states[ranks[0]]) for ranks in by_group.values()])
    is_one_group = len({base_group(group) for group in by_group}) == 1  # a group that gloo and NCCL both serve
    if len(sides) == 2 and not is_one_group and (blame := _alone_in_a_group(job, book, sides, next(iter(by_group)))) is not None:
        there, others = _alone_and_other(blame, sides)
        summary = f"only {ranks_text(there.ranks)} called {there.short_text}; {verb(others.ranks, 'waits', 'wait')} in {others.short_text}"
        return finding_of(job, states, blame, sides, summary)
    return circle_finding(job, states, ring)


def _alone_in_a_group(job: JobEvidence, book: SourceBook, sides: list[Side], group: str) -> Blame | None:
    """Why only one side makes its call: a condition on the rank, an exception that only this side met, a line that the others have passed."""
    divergence = find_divergence(job, sides[0].ranks[0], sides[1].ranks[0], group)
    blame = blame_for_divergence(job, book, divergence, sides[0].ranks, sides[1].ranks) if divergence is not None else None
    blame = blame or by_rank_condition(job, book, sides)
    if blame is None or blame.code not in ("RW201", "RW208") or not any(side.ranks == blame.ranks for side in sides):
        return None
    alone, other = _alone_and_other(blame, sides)
    is_new = blame.code == "RW208" and divergence is not None and _is_new(divergence, blame.ranks)
    is_certain = blame.code == "RW208" and blame.certain
    return blame if is_certain or is_new or _has_passed(book, other, alone) else None


def _alone_and_other(blame: Blame, sides: list[Side]) -> list[Side]:
    """The side that is alone with its call, then the other one. RW208 blames the first, RW201 the second, which skipped the call."""
    return sides if (sides[0].ranks == blame.ranks) == (blame.code == "RW208") else sides[::-1]


def _has_passed(book: SourceBook, other: Side, alone: Side) -> bool:
    """Whether one side can no longer come to the other's call: it is further down in the function they share, out of all loops around it."""
    shared = book.shared_frames(other.stack, alone.stack)
    if shared is None or book.tree(shared[0].file) is None:
        return False
    here, there = shared
    return here.line > there.line and not any(loop.end >= here.line for loop in book.loops_at(there.file, there.line))


def _is_new(divergence: Divergence, ranks: list[int]) -> bool:
    """Whether these ranks came to a call never made before and the others to a usual one: then the order of the groups is not the cause."""
    seen = divergence if divergence.mine.rank in ranks else divergence.swapped()
    if seen.next is None or seen.next_other is None:
        return False
    return not was_called(divergence, seen.next) and was_called(divergence, seen.next_other)


# -- one side is missing ------------------------------------------------------------------------------------------------------


def _missing_in_slot(job: JobEvidence, states: RankStates, book: SourceBook) -> Finding | None:
    """Some ranks wait in a collective that the others will not join: those have left, or wait in another one for good."""
    doomed = doomed_ranks(job, states)
    slots: dict[tuple[str, str, int | None], list[int]] = {}
    for rank, state in sorted(states.items()):
        if state.kind == "waiting" and state.op not in P2P and state.op not in ("new_group", "unknown", "destroy_process_group"):
            slots.setdefault((state.op, state.group, state.seq), []).append(rank)
    for waiting in slots.values():
        rank, state = waiting[0], states[waiting[0]]
        missing = needed_by(job, states, rank)
        gone = sorted(r for r in missing if r in states and states[r].kind == "ended" and _left_quietly(job, r))
        if gone:
            return _left_while_waited_for(job, states, book, waiting, gone)
        elsewhere = sorted(r for r in missing if r in states and states[r].kind == "waiting" and states[r].op not in P2P)
        if (
            elsewhere
            and elsewhere == sorted(missing)
            and {rank, *elsewhere} <= doomed
            and all(states[r].group == state.group for r in elsewhere)
        ):
            sides = [Side.at(waiting, state), *(Side.at([other], states[other]) for other in elsewhere)]
            if len({side.op for side in sides}) > 1 or len({side.frame for side in sides}) > 1:
                return finding_of_sides(job, states, book, merged(sides), "as their calls show", True)
    return None


def _left_quietly(job: JobEvidence, rank: int) -> bool:
    ended = end_of(job.ranks[rank])
    return ended is not None and ended.kind in ("finished", "sys_exit", "os_exit") and not (ended.code or 0)


def _left_while_waited_for(job: JobEvidence, states: RankStates, book: SourceBook, waiting: list[int], gone: list[int]) -> Finding:
    state = states[waiting[0]]
    side = Side.at(waiting, state)
    divergence = find_divergence(job, waiting[0], gone[0], state.group)
    blame = blame_for_divergence(job, book, divergence, waiting, gone) if divergence is not None else None
    blame = blame or by_rank_condition(job, book, [side, Side(gone, "exit", ())]) or _odd_ones_out(job, waiting, gone)
    if blame is not None and set(blame.ranks) == set(waiting):
        alone = side
        if divergence is not None:
            alone = side_of(waiting, divergence.next if divergence.mine.rank in waiting else divergence.next_other)
        summary = f"only {ranks_text(waiting)} called {alone.short_text}; {verb(gone, 'has', 'have')} already finished and left"
        return finding_of(job, states, blame, [side], summary)
    ended = end_of(job.ranks[gone[0]])
    assert ended is not None
    frame = states[gone[0]].frame
    how = {"os_exit": f"called os._exit({ended.code or 0})", "sys_exit": f"called sys.exit({ended.code or 0})"}.get(
        ended.kind, "finished and exited with code 0" if not job.ranks[gone[0]].alive else "has come to the end of its script"
    )
    rest = f"{verb(waiting, 'waits', 'wait')} in {side.short_text}"
    if ended.kind in ("os_exit", "sys_exit"):
        blame = Blame("RW402", gone, _LEAVING)
    elif blame is None:
        why = f"{ranks_text(gone)} may have left too early, or {verb(waiting, 'makes', 'make')} a call that is not meant for all: compare the lines"
        blame = Blame("RW402", [*gone, *waiting], why, certain=False)
    places = tuple(place_at(job.ranks[rank], blame.line or states[rank].frame or last_call_frame(job.ranks[rank])) for rank in gone)
    is_one_side = blame.certain or (blame.code == "RW402" and blame.ranks == gone)
    return load_cause(blame.code).finding(
        f"{ranks_text(gone)} {how}; {rest}",
        certain=blame.certain,
        culprits=places if is_one_side else (*places, *(place_at(job.ranks[rank], state.frame) for rank in waiting)),
        waiting=tuple(wait_of(states[rank]) for rank in waiting) if is_one_side else (),
        why=f"{blame.why}; it left{at(frame)}, {verb(waiting, 'is', 'are')} in {side.text}{at(state.frame)}",
        deadlock=True,
        instead=() if is_one_side else COMPARE,
    )


def _odd_ones_out(job: JobEvidence, waiting: list[int], gone: list[int]) -> Blame | None:
    """Blame the minority: the ranks that wait, or the ranks that left."""
    if len(gone) > len(job.ranks) / 2:
        return Blame("RW208", waiting, f"{ranks_text(gone)} ended without this call")
    return Blame("RW402", gone, _LEAVING) if len(waiting) > len(job.ranks) / 2 else None
