"""Ranks that disagree about what comes next: different collectives in a slot, skipped ones, groups, sends without receives."""

from __future__ import annotations

from dataclasses import dataclass

from rankwise.causes import load_cause
from rankwise.diagnose.match import Conflict, find_conflict, last_seq, value_of
from rankwise.diagnose.source import SourceBook, common_frames
from rankwise.diagnose.standing import P2P, Standing, place_of, wait_of
from rankwise.diagnose.wording import at, group_text, verb
from rankwise.evidence.frames import user_frames
from rankwise.evidence.records import Frame, JobEvidence, NewGroup, Stack
from rankwise.findings import Finding, ranks_text

_SAME_SLOT = {
    "size": ("RW204", "tensors of different size"),
    "dtype": ("RW205", "tensors of different dtype"),
    "src": ("RW206", "different src (root) ranks"),
    "reduce_op": ("RW207", "different reduce operations"),
}


@dataclass(frozen=True)
class _Side:
    """The ranks that stand together in one place."""

    ranks: list[int]
    op: str
    stack: Stack
    inside: str = ""


@dataclass(frozen=True)
class _Blame:
    code: str
    ranks: list[int]
    why: str
    line: Frame | None = None  # the line that caused it, where one can be told


def find_disagreement(job: JobEvidence, stands: dict[int, Standing], book: SourceBook) -> Finding | None:
    """The first disagreement between ranks, if there is one; certain, since both sides were seen."""
    return (
        _group_disagreement(job, stands)
        or _slot_disagreement(job, stands, book)
        or _missing_in_slot(job, stands, book)
        or _unmatched_p2p(job, stands)
        or _circle(job, stands)
    )


def members_of(job: JobEvidence, group: str) -> list[int]:
    """The ranks of a group, as far as they are known."""
    if group == "0":
        return sorted(set(range(job.world_size or 0)) | set(job.ranks))
    for evidence in job.ranks.values():
        for made in evidence.groups:
            if made.name == group and made.ranks:
                return sorted(made.ranks)
    return sorted(rank for rank, evidence in job.ranks.items() if group in evidence.collectives.groups())


def needed_by(job: JobEvidence, stands: dict[int, Standing], rank: int) -> set[int]:
    """The ranks that a waiting rank waits for: members that have not arrived where it is."""
    standing = stands[rank]
    if standing.op in P2P:
        return {standing.peer} if standing.peer is not None else set()
    if standing.op == "new_group":
        mine = len(job.ranks[rank].groups)
        return {r for r in job.ranks if r != rank and len(job.ranks[r].groups) < mine}
    return {r for r in members_of(job, standing.group) if r != rank and not _has_arrived(job, stands, r, standing)}


def _has_arrived(job: JobEvidence, stands: dict[int, Standing], rank: int, standing: Standing) -> bool:
    evidence = job.ranks.get(rank)
    if evidence is None:
        return False
    other = stands[rank]
    if standing.seq is not None and not evidence.collectives.is_partial:
        return last_seq(evidence.collectives, standing.group) >= standing.seq
    return other.kind == "waiting" and (other.op, other.group) == (standing.op, standing.group)


# -- the same slot, different things ------------------------------------------------------------------------------------------


def _slot_disagreement(job: JobEvidence, stands: dict[int, Standing], book: SourceBook) -> Finding | None:
    conflict = find_conflict(job)
    if conflict is None:
        return None
    if conflict.about == "op":
        return _different_ops(job, stands, book, conflict)
    code, words = _SAME_SLOT[conflict.about]
    values = conflict.by_value()
    culprits = _minority(values) or sorted(conflict.entries)
    op = next(iter(conflict.entries.values())).what.op
    sides = "; ".join(f"{verb(ranks, 'has', 'have')} {_shown(conflict, ranks[0])}" for ranks in values.values())
    frames = {rank: _site(job, rank, conflict) for rank in conflict.entries}
    return load_cause(code).finding(
        f"{op} #{conflict.seq}{group_text(conflict.group)} is called with {words}: {sides}",
        certain=True,
        culprits=tuple(place_of(job.ranks[rank], _top(frames[rank])) for rank in culprits),
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


def _different_ops(job: JobEvidence, stands: dict[int, Standing], book: SourceBook, conflict: Conflict) -> Finding:
    values = conflict.by_value()
    sides = []
    for op, ranks in values.items():
        entry = conflict.entries[ranks[0]]
        inside = entry.origin if entry.origin in ("forward", "backward", "ddp") else ""
        sides.append(_Side(ranks, op, _site(job, ranks[0], conflict), inside))
    return _finding_for(job, stands, book, sides, f"slot #{conflict.seq}{group_text(conflict.group)}", _is_stuck(stands, conflict))


def _finding_for(job: JobEvidence, stands: dict[int, Standing], book: SourceBook, sides: list[_Side], slot: str, deadlock: bool) -> Finding:
    blame = _blame(job, book, sides)
    told = "; ".join(f"{verb(side.ranks, 'is', 'are')} in {_op_text(side)}{at(_top(side.stack))}" for side in sides)
    culprits = []
    for side in sides:
        for rank in side.ranks:
            if rank in blame.ranks:
                culprits.append(place_of(job.ranks[rank], blame.line or _top(side.stack)))
    innocent = [rank for side in sides for rank in side.ranks if rank not in blame.ranks]
    return load_cause(blame.code).finding(
        f"{_headline(blame, sides)}; {told} ({slot})",
        certain=True,
        culprits=tuple(culprits),
        waiting=tuple(wait_of(stands[rank]) for rank in innocent if stands[rank].kind == "waiting"),
        why=blame.why,
        deadlock=deadlock,
    )


def _headline(blame: _Blame, sides: list[_Side]) -> str:
    who = ranks_text(blame.ranks)
    theirs = next((side for side in sides if set(side.ranks) & set(blame.ranks)), sides[0])
    others = next((side for side in sides if side is not theirs), theirs)
    return {
        "RW201": f"{who} skipped {_op_text(others)} that the others are in",
        "RW202": "ranks called different collectives in the same slot",
        "RW203": f"{who} calls collectives in a different order",
        "RW208": f"only {who} called {_op_text(theirs)}",
        "RW209": f"only {who} ran a forward through the DDP wrapper",
        "RW213": f"{who} finished with fewer batches than the others",
        "RW219": f"{who} left the loop early",
    }[blame.code]


def _op_text(side: _Side) -> str:
    return {
        "backward": f"{side.op} (gradients, in backward)",
        "forward": f"{side.op} (buffers, in the DDP module's forward)",
        "ddp": f"{side.op} (in the DDP constructor)",
    }.get(side.inside, side.op)


# -- who is to blame ----------------------------------------------------------------------------------------------------------


def _blame(job: JobEvidence, book: SourceBook, sides: list[_Side]) -> _Blame:
    """Decide who deviates, by the strongest argument there is; where there is none, both sides are named."""
    first, second = sides[0], sides[1]
    return (
        _by_rank_condition(job, book, sides)
        or _by_loop(job, book, first, second)
        or _by_loop(job, book, second, first)
        or _by_counts(job, book, sides)
        or _by_majority(job, sides)
        or _by_branch(job, book, first, second)
        or _Blame("RW202", sorted(rank for side in sides for rank in side.ranks), _no_common_reason(sides))
    )


def _by_rank_condition(job: JobEvidence, book: SourceBook, sides: list[_Side]) -> _Blame | None:
    """A call that stands under `if rank == …` is made by some ranks only; unless the others have their own call for it."""
    world, ranks = job.world_size or len(job.ranks), sorted(job.ranks)
    guarded = []
    for side in sides:
        reaching, guard = book.ranks_reaching(side.stack, ranks, world)
        rest = {rank for other in sides if other is not side for rank in other.ranks}
        if set(side.ranks) <= reaching and not reaching & rest and rest:
            guarded.append((side, guard, sorted(rest)))
    if len(guarded) != 1:
        return None
    side, guard, others = guarded[0]
    condition = f"`{guard.text}` ({_name(side.stack)}:{guard.line})" if guard else "a condition on the rank"
    twin = next((frame for frame in side.stack if book.has_twin_call(frame, side.op, others, side.ranks, world)), None)
    if twin is not None:
        skip = next((s for s in book.skips_before(twin.file, _last_line(book, twin)) if s.kind == "return"), None)
        line = Frame(twin.file, skip.line, twin.function) if skip else None
        left = f" the return in line {skip.line} skips it" if skip else ""
        return _Blame(
            "RW201", others, f"{twin.function}() has a {side.op} for {ranks_text(others)} too, which was not reached:{left}", line
        )
    if side.inside == "forward":
        why = f"the forward stands under {condition}; DDP broadcasts its buffers in forward, and the other ranks take no part"
        return _Blame("RW209", side.ranks, why)
    return _Blame("RW208", side.ranks, f"the call stands under {condition}, so {verb(others, 'never makes', 'never make')} it")


def _by_loop(job: JobEvidence, book: SourceBook, inner: _Side, outer: _Side) -> _Blame | None:
    """One side is still in a loop that the other has left: the one outside did fewer rounds or skipped a collective in one."""
    shared = common_frames(inner.stack, outer.stack)
    if shared is None:
        return None
    here, there = shared
    left = [loop for loop in book.loops_around(here.file, here.line) if there.line > loop[1]]
    if not left:
        return None
    fetched_less = _more_rounds(job, inner.ranks[0], outer.ranks[0], ("next_batch",))
    skips = [skip for skip in book.skips_before(here.file, here.line) if skip.kind in ("continue", "except") or skip.in_handler]
    breaks = [skip for skip in book.skips_before(here.file, _loop_end(left[-1])) if skip.kind == "break"]
    if not fetched_less and skips:
        skip = skips[0] if len(skips) == 1 else None
        how = f"the {skip.kind} in {_name(outer.stack)}:{skip.line}" if skip else "a continue, an exception handler or an early return"
        line = Frame(here.file, skip.line, here.function) if skip else None
        return _Blame("RW201", outer.ranks, f"it went as many rounds but took part in fewer {inner.op}: {how} skips it", line)
    if breaks and not _ended_data(job, outer.ranks[0]):
        line = Frame(here.file, breaks[0].line, here.function) if len(breaks) == 1 else None
        condition = f" when `{breaks[0].guard}`" if breaks[0].guard else ""
        return _Blame("RW219", outer.ranks, f"the break in {_name(outer.stack)}:{breaks[0].line}{condition} is decided per rank", line)
    why = f"it has left the loop in {_name(outer.stack)}:{left[-1][0]} that the others are still in: it has fewer batches (uneven data)"
    return _Blame("RW213", outer.ranks, why)


def _by_counts(job: JobEvidence, book: SourceBook, sides: list[_Side]) -> _Blame | None:
    """DDP forwards without a backward: a rank with more of them than the others skipped a backward, or evaluates through the wrapper."""
    surplus = {side.ranks[0]: _forward_surplus(job, side) for side in sides}
    if any(value is None for value in surplus.values()) or len(set(surplus.values())) == 1:
        return None
    most = max(sides, key=lambda side: surplus[side.ranks[0]] or 0)
    line = None
    backward = next((call for call in reversed(job.ranks[most.ranks[0]].calls) if call.op == "backward" and call.stack), None)
    frame = _top(user_frames(backward.stack)) if backward else None
    skips = [s for s in book.skips_before(frame.file, frame.line) if s.kind in ("continue", "except") or s.in_handler] if frame else []
    if frame and len(skips) == 1:
        line = Frame(frame.file, skips[0].line, frame.function)
    if most.inside == "forward" and not skips:
        return _Blame("RW209", most.ranks, "it ran more forwards through the DDP wrapper than backwards, as an evaluation does")
    return _Blame(
        "RW201", most.ranks, "it ran a forward without the backward that the others ran, so it is one gradient all_reduce behind", line
    )


def _by_majority(job: JobEvidence, sides: list[_Side]) -> _Blame | None:
    largest, rest = sides[0], sides[1:]
    others = sorted(rank for side in rest for rank in side.ranks)
    if len(largest.ranks) <= len(others):
        return None
    why = f"{verb(largest.ranks, 'agrees', 'agree')} on {_op_text(largest)}; {verb(others, 'does', 'do')} not"
    return _Blame("RW202" if len(rest) > 1 else "RW203", others, why)


def _by_branch(job: JobEvidence, book: SourceBook, a: _Side, b: _Side) -> _Blame | None:
    """Both came through the same function, in which only one side took a branch that depends on the rank."""
    shared = common_frames(a.stack, b.stack)
    world = job.world_size or len(job.ranks)
    frames = [frame for frame in a.stack if shared and (frame.file, frame.function) == (shared[0].file, shared[0].function)]
    for frame in [*frames, *[f for f in a.stack if any(f.function == g.function for g in b.stack)]]:
        taken = book.branch_taken_by(frame, [*a.ranks, *b.ranks], world)
        if taken is not None:
            ranks, line = taken
            why = f"only {ranks_text(ranks)} took the branch in {_name(a.stack)}:{line}, after which the order of collectives differs (mismatch)"
            return _Blame("RW203", sorted(ranks), why)
    return None


def _no_common_reason(sides: list[_Side]) -> str:
    return f"{' and '.join(_op_text(side) for side in sides)} stand in the same slot: every rank must call the same collectives in the same order"


def _minority(values: dict[str, list[int]]) -> list[int]:
    groups = list(values.values())
    total = sum(map(len, groups))
    return sorted(rank for ranks in groups[1:] for rank in ranks) if len(groups[0]) > total / 2 else []


def _more_rounds(job: JobEvidence, inner: int, outer: int, by: tuple[str, ...] = ("next_batch", "forward")) -> bool:
    """True if the rank inside the loop has begun more rounds than the one outside."""
    a, b = job.ranks[inner].counts, job.ranks[outer].counts
    for op in by:
        if op in a or op in b:
            return a.get(op, 0) > b.get(op, 0)
    return False


def _forward_surplus(job: JobEvidence, side: _Side) -> int | None:
    counts = job.ranks[side.ranks[0]].counts
    if "forward" not in counts:
        return None
    return counts["forward"] - counts.get("backward", 0) - (1 if side.inside == "forward" else 0)


def _ended_data(job: JobEvidence, rank: int) -> bool:
    return job.ranks[rank].counts.get("end_of_data", 0) > 0


# -- one side is missing ------------------------------------------------------------------------------------------------------


def _missing_in_slot(job: JobEvidence, stands: dict[int, Standing], book: SourceBook) -> Finding | None:
    """Some ranks wait in a collective; the others have left for good, or wait in another one that these will not reach."""
    for rank, standing in stands.items():
        if standing.kind != "waiting" or standing.op in P2P or standing.op in ("new_group", "unknown"):
            continue
        missing = needed_by(job, stands, rank)
        waiting = sorted(
            r for r, s in stands.items() if s.kind == "waiting" and (s.op, s.group, s.seq) == (standing.op, standing.group, standing.seq)
        )
        gone = sorted(r for r in missing if r in stands and stands[r].kind == "ended" and _left_quietly(job, r))
        if gone:
            return _left_while_waited_for(job, stands, book, waiting, gone)
        elsewhere = sorted(r for r in missing if r in stands and stands[r].kind == "waiting" and stands[r].op not in P2P)
        if elsewhere and elsewhere == sorted(missing) and all(stands[r].group == standing.group for r in elsewhere):
            sides = [_Side(waiting, standing.op, standing.stack, standing.inside)]
            for other in elsewhere:
                s = stands[other]
                sides.append(_Side([other], s.op, s.stack, s.inside))
            if len({side.op for side in sides}) > 1 or len({_top(side.stack) for side in sides}) > 1:
                return _finding_for(job, stands, book, _merged(sides), "as their calls show", True)
    return None


def _left_quietly(job: JobEvidence, rank: int) -> bool:
    ended = job.ranks[rank].ended
    return ended is not None and ended.kind in ("finished", "sys_exit", "os_exit") and not (ended.code or 0)


def _left_while_waited_for(job: JobEvidence, stands: dict[int, Standing], book: SourceBook, waiting: list[int], gone: list[int]) -> Finding:
    standing = stands[waiting[0]]
    side = _Side(waiting, standing.op, standing.stack, standing.inside)
    waits = tuple(wait_of(stands[rank]) for rank in waiting)
    reaching, guard = book.ranks_reaching(side.stack, sorted(job.ranks), job.world_size or len(job.ranks))
    if guard is not None and set(waiting) <= reaching and not reaching & set(gone):
        blame = _by_rank_condition(job, book, [side, _Side(gone, "exit", ())])
        if blame is not None and blame.code in ("RW208", "RW209"):
            return load_cause(blame.code).finding(
                f"only {ranks_text(waiting)} called {_op_text(side)}{at(standing.frame)}; {verb(gone, 'has', 'have')} already finished and left",
                certain=True,
                culprits=tuple(place_of(job.ranks[rank], standing.frame) for rank in waiting),
                why=blame.why,
                deadlock=True,
            )
    ended = job.ranks[gone[0]].ended
    assert ended is not None
    frame = stands[gone[0]].frame
    fewer = _more_rounds(job, waiting[0], gone[0])
    how = {"os_exit": f"called os._exit({ended.code or 0})", "sys_exit": f"called sys.exit({ended.code or 0})"}.get(
        ended.kind, "finished and exited with code 0"
    )
    rounds = f" after {_rounds_text(job, gone[0], waiting[0])}" if fewer else ""
    code = "RW213" if fewer and ended.kind == "finished" else "RW402"
    return load_cause(code).finding(
        f"{ranks_text(gone)} {how}{at(frame)}{rounds} while {verb(waiting, 'was', 'were')} still waiting in {_op_text(side)}{at(standing.frame)}",
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
        frame = _top(user_frames(call.stack))
        if frame is not None:
            return frame
    return None


def _merged(sides: list[_Side]) -> list[_Side]:
    found: dict[tuple[str, Frame | None], _Side] = {}
    for side in sides:
        key = (side.op, _top(side.stack))
        earlier = found.get(key)
        found[key] = _Side(sorted({*side.ranks, *(earlier.ranks if earlier else [])}), side.op, side.stack, side.inside)
    return sorted(found.values(), key=lambda side: -len(side.ranks))


# -- groups -------------------------------------------------------------------------------------------------------------------


def _group_disagreement(job: JobEvidence, stands: dict[int, Standing]) -> Finding | None:
    """`new_group` must be called by all ranks, also those outside the group, in the same order."""
    joined = {rank: evidence for rank, evidence in job.ranks.items() if evidence.inits}
    if len(joined) < 2 or not any(evidence.groups for evidence in joined.values()):
        return None
    made = {rank: evidence.groups for rank, evidence in joined.items()}
    length = max(map(len, made.values()))
    for i in range(length):
        values: dict[tuple[int, ...] | None, list[int]] = {}
        for rank, groups in made.items():
            values.setdefault(groups[i].ranks if i < len(groups) else None, []).append(rank)
        if len(values) == 1:
            continue
        if set(values) - {None} and None in values and len(values) == 2:
            absent = values[None]
            if not any(stands[rank].op == "new_group" for rank in made if rank not in absent) or any(
                stands[r].kind == "elsewhere" for r in absent
            ):
                return None  # the others may still come
        return _group_finding(job, stands, made, i, values)
    return None


def _group_finding(
    job: JobEvidence,
    stands: dict[int, Standing],
    made: dict[int, tuple[NewGroup, ...]],
    i: int,
    values: dict[tuple[int, ...] | None, list[int]],
) -> Finding:
    ordered = sorted(values.items(), key=lambda item: -len(item[1]))
    (wanted, agreeing), (other, odd) = ordered[0], ordered[1]
    if wanted is None or (other is not None and len(agreeing) == len(odd) and _skipped(made[agreeing[0]], made[odd[0]], i)):
        wanted, agreeing, other, odd = other, odd, wanted, agreeing
    swapped = (
        other is not None
        and any(group.ranks == wanted for group in made[odd[0]][i + 1 :])
        and any(group.ranks == other for group in made[agreeing[0]][i + 1 :])
    )
    code = "RW211" if swapped else "RW210"
    mine = made[odd[0]]
    frame = _top(user_frames(mine[i].stack)) if i < len(mine) else stands[odd[0]].frame
    theirs = _top(user_frames(made[agreeing[0]][i].stack))
    instead = f"called new_group({list(other)}){at(frame)} instead" if other is not None else f"is{at(frame)}" if frame else "is elsewhere"
    return load_cause(code).finding(
        f"{verb(agreeing, 'called', 'called')} new_group({list(wanted or ())}){at(theirs)}, but {ranks_text(odd)} {instead}",
        certain=True,
        culprits=tuple(place_of(job.ranks[rank], frame) for rank in odd),
        waiting=tuple(wait_of(stands[rank]) for rank in agreeing if stands[rank].kind == "waiting"),
        why="new_group must be called by every rank of the job, also by those outside the new group, in the same order"
        + (": here the order of the process groups differs" if swapped else ": one rank skipped it, so the groups' numbering differs"),
        deadlock=any(stands[rank].kind == "waiting" for rank in made),
    )


def _skipped(longer: tuple[NewGroup, ...], shorter: tuple[NewGroup, ...], i: int) -> bool:
    """True if `longer` lacks what `shorter` has at i: then it is `longer` that skipped."""
    return i < len(shorter) and i + 1 < len(shorter) and i < len(longer) and longer[i].ranks == shorter[i + 1].ranks


# -- sends, receives, circles -------------------------------------------------------------------------------------------------


def _unmatched_p2p(job: JobEvidence, stands: dict[int, Standing]) -> Finding | None:
    for rank, standing in sorted(stands.items()):
        if standing.kind != "waiting" or standing.op not in P2P or standing.peer is None:
            continue
        peer = stands.get(standing.peer)
        if peer is None or peer.kind in ("elsewhere", "before_init", "init"):
            continue
        wanted = "recv" if "send" in standing.op else "send"
        if peer.kind == "waiting" and wanted in peer.op and peer.peer in (rank, None):
            continue
        doing = "has ended" if peer.kind == "ended" else f"is in {peer.says}{at(peer.frame)}"
        balance = _p2p_balance(job, rank, standing.peer)
        return load_cause("RW212").finding(
            f"rank {rank} waits in {standing.op} {'to' if wanted == 'recv' else 'from'} rank {standing.peer}{at(standing.frame)}, "
            f"but rank {standing.peer} {doing} and makes no matching {'recv (receive)' if wanted == 'recv' else 'send'}",
            certain=True,
            culprits=(place_of(job.ranks[rank], standing.frame), place_of(job.ranks[standing.peer], peer.frame)),
            waiting=(wait_of(peer),) if peer.kind == "waiting" else (),
            why=f"every send needs its recv{balance}",
            deadlock=True,
        )
    return None


def _p2p_balance(job: JobEvidence, a: int, b: int) -> str:
    sends = sum(call.op in ("send", "isend") and call.peer == b for call in job.ranks[a].calls)
    receives = sum(call.op in ("recv", "irecv") and call.peer == a for call in job.ranks[b].calls)
    return f": rank {a} called send {sends} times, rank {b} called recv {receives} times" if sends else ""


def _circle(job: JobEvidence, stands: dict[int, Standing]) -> Finding | None:
    """Ranks that wait for each other in collectives of different groups."""
    waiting = {rank: needed_by(job, stands, rank) for rank, s in stands.items() if s.kind == "waiting" and s.op != "unknown"}
    for rank in sorted(waiting):
        path = [rank]
        while True:
            step = next((r for r in sorted(waiting.get(path[-1], ())) if r in waiting), None)
            if step is None:
                break
            if step in path:
                ring = path[path.index(step) :]
                if len({stands[r].group for r in ring}) > 1:
                    return _circle_finding(job, stands, ring)
                break
            path.append(step)
    return None


def _circle_finding(job: JobEvidence, stands: dict[int, Standing], ring: list[int]) -> Finding:
    told = "; ".join(
        f"rank {r} is in {stands[r].says}{group_text(stands[r].group) or ' of the default group'}{at(stands[r].frame)}" for r in ring
    )
    return load_cause("RW218").finding(
        f"{ranks_text(ring)} wait for each other in collectives of different groups: {told}",
        certain=True,
        culprits=tuple(place_of(job.ranks[r], stands[r].frame) for r in ring),
        why="ranks that share several groups must call the groups' collectives in the same order",
        deadlock=True,
    )


# -- small helpers ------------------------------------------------------------------------------------------------------------


def _site(job: JobEvidence, rank: int, conflict: Conflict) -> Stack:
    log = job.ranks[rank].collectives
    return user_frames(log.stack_of(conflict.entries[rank]))


def _is_stuck(stands: dict[int, Standing], conflict: Conflict) -> bool:
    """Nobody comes past a conflict that ranks are waiting in; a conflict they all got past is only wrong, not a deadlock."""
    return any(
        stands[rank].kind == "waiting" and stands[rank].group == conflict.group and (stands[rank].seq or 0) >= conflict.seq
        for rank in conflict.entries
        if rank in stands
    ) and not any(stands[rank].kind == "elsewhere" for rank in conflict.entries if rank in stands)


def _both_places(frames: dict[int, Stack]) -> str:
    tops = {_top(stack) for stack in frames.values()}
    return f" called{' and'.join(at(frame) for frame in sorted(tops, key=str) if frame)}" if len(tops) < 4 else ""


def _top(stack: Stack) -> Frame | None:
    return stack[0] if stack else None


def _name(stack: Stack) -> str:
    import os

    return os.path.basename(stack[0].file) if stack else "the script"


def _last_line(book: SourceBook, frame: Frame) -> int:
    function = book._function_at(frame.file, frame.line)
    return getattr(function, "end_lineno", None) or frame.line


def _loop_end(loop: tuple[int, int]) -> int:
    return loop[1]


__all__ = ["find_disagreement", "members_of", "needed_by", "value_of"]
