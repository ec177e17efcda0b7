"""Ranks that disagree about what comes next: different collectives in a slot, skipped ones, ranks that left."""

from __future__ import annotations

from rankwise.causes import load_cause
from rankwise.diagnose.blame import Blame, Side, by_rank_condition, find_blame, minority, more_rounds, op_text, top_of
from rankwise.diagnose.groups import find_group_disagreement
from rankwise.diagnose.match import Conflict, find_conflict
from rankwise.diagnose.p2p import find_circle, find_unmatched_p2p
from rankwise.diagnose.source import SourceBook
from rankwise.diagnose.standing import P2P, Standings, place_of, wait_of
from rankwise.diagnose.waiting import doomed_ranks, needed_by
from rankwise.diagnose.wording import at, group_text, verb
from rankwise.evidence.frames import user_frames
from rankwise.evidence.records import Frame, JobEvidence, Stack
from rankwise.findings import Finding, ranks_text

_SAME_SLOT = {
    "size": ("RW204", "tensors of different size"),
    "dtype": ("RW205", "tensors of different dtype"),
    "src": ("RW206", "different src (root) ranks"),
    "reduce_op": ("RW207", "different reduce operations"),
}


def find_disagreement(job: JobEvidence, stands: Standings, book: SourceBook) -> Finding | None:
    """The first disagreement between ranks, if there is one; certain, since both sides were seen."""
    return (
        find_group_disagreement(job, stands)
        or _slot_disagreement(job, stands, book)
        or _missing_in_slot(job, stands, book)
        or find_unmatched_p2p(job, stands)
        or find_circle(job, stands)
    )


# -- the same slot, different things ------------------------------------------------------------------------------------------


def _slot_disagreement(job: JobEvidence, stands: Standings, book: SourceBook) -> Finding | None:
    conflict = find_conflict(job)
    if conflict is None:
        return None
    if conflict.about == "op":
        return _different_ops(job, stands, book, conflict)
    code, words = _SAME_SLOT[conflict.about]
    values = conflict.by_value()
    culprits = minority(values) or sorted(conflict.entries)
    op = next(iter(conflict.entries.values())).what.op
    sides = "; ".join(f"{verb(ranks, 'has', 'have')} {_shown(conflict, ranks[0])}" for ranks in values.values())
    frames = {rank: _site(job, rank, conflict) for rank in conflict.entries}
    return load_cause(code).finding(
        f"{op} #{conflict.seq}{group_text(conflict.group)} is called with {words}: {sides}",
        certain=True,
        culprits=tuple(place_of(job.ranks[rank], top_of(frames[rank])) for rank in culprits),
        waiting=tuple(
            wait_of(stands[rank]) for rank in sorted(conflict.entries) if rank not in culprits and stands[rank].kind == "waiting"
        ),
        why=f"every rank must call {op} with the same {_noun(conflict.about)};{_both_places(frames)}",
        deadlock=_is_stuck(stands, conflict),
    )


def _shown(conflict: Conflict, rank: int) -> str:
    what = conflict.entries[rank].what
    if conflict.about == "size":
        return f"shape {list(what.sizes)}"
    return {"dtype": f"dtype {what.dtype}", "src": f"src={what.peer}", "reduce_op": f"op={what.reduce_op}"}[conflict.about]


def _noun(about: str) -> str:
    return {"size": "shape", "dtype": "dtype", "src": "src", "reduce_op": "op"}[about]


def _different_ops(job: JobEvidence, stands: Standings, book: SourceBook, conflict: Conflict) -> Finding:
    values = conflict.by_value()
    sides = []
    for op, ranks in values.items():
        entry = conflict.entries[ranks[0]]
        inside = entry.origin if entry.origin in ("forward", "backward", "ddp") else ""
        sides.append(Side(ranks, op, _site(job, ranks[0], conflict), inside))
    return _finding_for(job, stands, book, sides, f"slot #{conflict.seq}{group_text(conflict.group)}", _is_stuck(stands, conflict))


def _finding_for(job: JobEvidence, stands: Standings, book: SourceBook, sides: list[Side], slot: str, deadlock: bool) -> Finding:
    blame = find_blame(job, book, sides)
    told = "; ".join(f"{verb(side.ranks, 'is', 'are')} in {op_text(side)}{at(top_of(side.stack))}" for side in sides)
    culprits = []
    for side in sides:
        for rank in side.ranks:
            if rank in blame.ranks:
                culprits.append(place_of(job.ranks[rank], blame.line or top_of(side.stack)))
    innocent = [rank for side in sides for rank in side.ranks if rank not in blame.ranks]
    return load_cause(blame.code).finding(
        f"{_headline(blame, sides)}; {told} ({slot})",
        certain=True,
        culprits=tuple(culprits),
        waiting=tuple(wait_of(stands[rank]) for rank in innocent if stands[rank].kind == "waiting"),
        why=blame.why,
        deadlock=deadlock,
    )


def _headline(blame: Blame, sides: list[Side]) -> str:
    who = ranks_text(blame.ranks)
    theirs = next((side for side in sides if set(side.ranks) & set(blame.ranks)), sides[0])
    others = next((side for side in sides if side is not theirs), theirs)
    return {
        "RW201": f"{who} skipped {op_text(others)} that the others are in",
        "RW202": "ranks called different collectives in the same slot",
        "RW203": f"{who} calls collectives in a different order",
        "RW208": f"only {who} called {op_text(theirs)}",
        "RW209": f"only {who} ran a forward through the DDP wrapper",
        "RW213": f"{who} finished with fewer batches than the others",
        "RW215": f"{who} had no gradient for some parameters that the others reduce (unused there)",
        "RW219": f"{who} left the loop early",
    }[blame.code]


# -- one side is missing ------------------------------------------------------------------------------------------------------


def _missing_in_slot(job: JobEvidence, stands: Standings, book: SourceBook) -> Finding | None:
    """Some ranks wait in a collective; the others have left for good, or wait in another one that these will not reach."""
    doomed = doomed_ranks(job, stands)
    slots: dict[tuple[str, str, int | None], list[int]] = {}
    for rank, standing in sorted(stands.items()):
        if standing.kind == "waiting" and standing.op not in P2P and standing.op not in ("new_group", "unknown", "destroy_process_group"):
            slots.setdefault((standing.op, standing.group, standing.seq), []).append(rank)
    for waiting in slots.values():
        rank, standing = waiting[0], stands[waiting[0]]
        missing = needed_by(job, stands, rank)
        gone = sorted(r for r in missing if r in stands and stands[r].kind == "ended" and _left_quietly(job, r))
        if gone:
            return _left_while_waited_for(job, stands, book, waiting, gone)
        elsewhere = sorted(r for r in missing if r in stands and stands[r].kind == "waiting" and stands[r].op not in P2P)
        if (
            elsewhere
            and elsewhere == sorted(missing)
            and {rank, *elsewhere} <= doomed
            and all(stands[r].group == standing.group for r in elsewhere)
        ):
            sides = [Side(waiting, standing.op, standing.stack, standing.inside)]
            for other in elsewhere:
                s = stands[other]
                sides.append(Side([other], s.op, s.stack, s.inside))
            if len({side.op for side in sides}) > 1 or len({top_of(side.stack) for side in sides}) > 1:
                return _finding_for(job, stands, book, _merged(sides), "as their calls show", True)
    return None


def _left_quietly(job: JobEvidence, rank: int) -> bool:
    ended = job.ranks[rank].ended
    return ended is not None and ended.kind in ("finished", "sys_exit", "os_exit") and not (ended.code or 0)


def _left_while_waited_for(job: JobEvidence, stands: Standings, book: SourceBook, waiting: list[int], gone: list[int]) -> Finding:
    standing = stands[waiting[0]]
    side = Side(waiting, standing.op, standing.stack, standing.inside)
    waits = tuple(wait_of(stands[rank]) for rank in waiting)
    reaching, guard = book.ranks_reaching(side.stack, sorted(job.ranks), job.world_size or len(job.ranks))
    if guard is not None and set(waiting) <= reaching and not reaching & set(gone):
        blame = by_rank_condition(job, book, [side, Side(gone, "exit", ())])
        if blame is not None and blame.code in ("RW208", "RW209"):
            return load_cause(blame.code).finding(
                f"only {ranks_text(waiting)} called {op_text(side)}{at(standing.frame)}; {verb(gone, 'has', 'have')} already finished and left",
                certain=True,
                culprits=tuple(place_of(job.ranks[rank], standing.frame) for rank in waiting),
                why=blame.why,
                deadlock=True,
            )
    ended = job.ranks[gone[0]].ended
    assert ended is not None
    frame = stands[gone[0]].frame
    fewer = more_rounds(job, waiting[0], gone[0])
    how = {"os_exit": f"called os._exit({ended.code or 0})", "sys_exit": f"called sys.exit({ended.code or 0})"}.get(
        ended.kind, "finished and exited with code 0"
    )
    rounds = f" after {_rounds_text(job, gone[0], waiting[0])}" if fewer else ""
    code = "RW213" if fewer and ended.kind == "finished" else "RW402"
    return load_cause(code).finding(
        f"{ranks_text(gone)} {how}{at(frame)}{rounds} while {verb(waiting, 'was', 'were')} still waiting in {op_text(side)}{at(standing.frame)}",
        certain=True,
        culprits=tuple(place_of(job.ranks[rank], stands[rank].frame or _last_place(job, rank)) for rank in gone),
        waiting=waits,
        why=f"{verb(gone, 'has', 'have')} fewer batches than the others and left earlier (uneven data)"
        if fewer
        else "a rank that leaves takes its part of every further collective with it",
        deadlock=True,
    )


def _rounds_text(job: JobEvidence, gone: int, waiting: int) -> str:
    a, b = job.ranks[gone].counts, job.ranks[waiting].counts
    op = "next_batch" if "next_batch" in b else "forward"
    return f"{a.get(op, 0)} {'batches' if op == 'next_batch' else 'steps'} (the others are at {b.get(op, 0)})"


def _last_place(job: JobEvidence, rank: int) -> Frame | None:
    for call in reversed(job.ranks[rank].calls):
        frame = top_of(user_frames(call.stack))
        if frame is not None:
            return frame
    return None


def _merged(sides: list[Side]) -> list[Side]:
    found: dict[tuple[str, Frame | None], Side] = {}
    for side in sides:
        key = (side.op, top_of(side.stack))
        earlier = found.get(key)
        found[key] = Side(sorted({*side.ranks, *(earlier.ranks if earlier else [])}), side.op, side.stack, side.inside)
    return sorted(found.values(), key=lambda side: -len(side.ranks))


# -- small helpers ------------------------------------------------------------------------------------------------------------


def _site(job: JobEvidence, rank: int, conflict: Conflict) -> Stack:
    log = job.ranks[rank].collectives
    return user_frames(log.stack_of(conflict.entries[rank]))


def _is_stuck(stands: Standings, conflict: Conflict) -> bool:
    """Nobody comes past a conflict that ranks are waiting in; a conflict they all got past is only wrong, not a deadlock."""
    return any(
        stands[rank].kind == "waiting" and stands[rank].group == conflict.group and (stands[rank].seq or 0) >= conflict.seq
        for rank in conflict.entries
        if rank in stands
    ) and not any(stands[rank].kind == "elsewhere" for rank in conflict.entries if rank in stands)


def _both_places(frames: dict[int, Stack]) -> str:
    tops = {top_of(stack) for stack in frames.values()}
    return f" called{' and'.join(at(frame) for frame in sorted(tops, key=str) if frame)}" if len(tops) < 4 else ""
