"""Decides who deviates when ranks stand in different places: by rank conditions, loops, counts, majority, branches."""

from __future__ import annotations

import os
from dataclasses import dataclass

from rankwise.diagnose.source import SourceBook, common_frames
from rankwise.diagnose.wording import verb
from rankwise.evidence.frames import user_frames
from rankwise.evidence.records import Frame, JobEvidence, Stack
from rankwise.findings import ranks_text


@dataclass(frozen=True)
class Side:
    """The ranks that stand together in one place."""

    ranks: list[int]
    op: str
    stack: Stack
    inside: str = ""


@dataclass(frozen=True)
class Blame:
    code: str
    ranks: list[int]
    why: str
    line: Frame | None = None  # the line that caused it, where one can be told


def find_blame(job: JobEvidence, book: SourceBook, sides: list[Side]) -> Blame:
    """Decide who deviates, by the strongest argument there is; where there is none, both sides are named."""
    first, second = sides[0], sides[1]
    return (
        by_rank_condition(job, book, sides)
        or _by_missing_gradients(job, first, second)
        or _by_missing_gradients(job, second, first)
        or _by_loop(job, book, first, second)
        or _by_loop(job, book, second, first)
        or _by_early_return(book, first, second)
        or _by_early_return(book, second, first)
        or _by_inner_loop(job, book, first, second)
        or _by_inner_loop(job, book, second, first)
        or _by_counts(job, book, sides)
        or _by_majority(job, sides)
        or _by_branch(job, book, first, second)
        or Blame("RW202", sorted(rank for side in sides for rank in side.ranks), _no_common_reason(sides))
    )


def by_rank_condition(job: JobEvidence, book: SourceBook, sides: list[Side]) -> Blame | None:
    """A call that stands under `if rank == …` is made by some ranks only; unless the others have their own call for it."""
    world, ranks = job.world_size or len(job.ranks), sorted(job.ranks)
    guarded = []
    for side in sides:
        reaching, guard = book.ranks_reaching(side.stack, ranks, world)
        rest = {rank for other in sides if other is not side for rank in other.ranks}
        if set(side.ranks) <= reaching and not reaching & rest and rest:
            guarded.append((side, guard, sorted(rest)))
    if len(guarded) > 1:
        return _by_two_conditions(book, sides, [(side, others) for side, _, others in guarded], world)
    if not guarded:
        return None
    side, guard, others = guarded[0]
    condition = f"`{guard.text}` ({file_name(side.stack)}:{guard.line})" if guard else "a condition on the rank"
    twin = next((frame for frame in side.stack if book.has_twin_call(frame, side.op, others, side.ranks, world)), None)
    if twin is not None:
        skip = next((s for s in book.skips_before(twin.file, book.end_of_function(twin.file, twin.line)) if s.kind == "return"), None)
        line = Frame(twin.file, skip.line, twin.function) if skip else None
        left = f" the return in line {skip.line} skips it" if skip else ""
        return Blame("RW201", others, f"{twin.function}() has a {side.op} for {ranks_text(others)} too, which was not reached:{left}", line)
    if side.inside == "forward":
        why = f"the forward stands under {condition}; DDP broadcasts its buffers in forward, and the other ranks take no part"
        return Blame("RW209", side.ranks, why)
    return Blame("RW208", side.ranks, f"the call stands under {condition}, so {verb(others, 'never makes', 'never make')} it")


def _by_two_conditions(book: SourceBook, sides: list[Side], guarded: list[tuple[Side, list[int]]], world: int) -> Blame | None:
    """Each side's call stands under a condition of its own: `if rank == 0: all_reduce(x) else: broadcast(x)`. Not one order, swapped."""
    for side, others in guarded:
        if any(book.has_twin_call(frame, side.op, others, side.ranks, world) for frame in side.stack):
            return None
    ranks = minority({str(i): side.ranks for i, side in enumerate(sides)}) or sorted(rank for side in sides for rank in side.ranks)
    return Blame("RW202", ranks, f"conditions on the rank lead to {' and '.join(op_text(side) for side in sides)}: they cannot meet")


def _by_loop(job: JobEvidence, book: SourceBook, inner: Side, outer: Side) -> Blame | None:
    """One side is still in a loop that the other has left: the one outside did fewer rounds or skipped a collective in one."""
    shared = common_frames(inner.stack, outer.stack)
    if shared is None:
        return None
    here, there = shared
    left = [loop for loop in book.loops_around(here.file, here.line) if there.line > loop[1]]
    return _left_loop(job, book, inner, outer, here, left) if left else None


def _by_inner_loop(job: JobEvidence, book: SourceBook, inner: Side, outer: Side) -> Blame | None:
    """The same, where the loop is in a function that one side is still in and the other has come back from."""
    shared = common_frames(inner.stack, outer.stack)
    if shared is None or shared[1].line <= shared[0].line:
        return None
    counts = [job.ranks[side.ranks[0]].counts for side in (inner, outer)]
    if any(op in each for each in counts for op in ("next_batch", "forward")) and not more_rounds(job, inner.ranks[0], outer.ranks[0]):
        return None
    for frame in _below(inner.stack, shared[0]):
        loops = book.loops_around(frame.file, frame.line)
        if loops:
            return _left_loop(job, book, inner, outer, frame, loops)
    return None


def _left_loop(job: JobEvidence, book: SourceBook, inner: Side, outer: Side, here: Frame, left: list[tuple[int, int]]) -> Blame:
    fetched_less = more_rounds(job, inner.ranks[0], outer.ranks[0], ("next_batch",))
    skips = [skip for skip in book.skips_before(here.file, here.line) if skip.kind in ("continue", "except") or skip.in_handler]
    breaks = [skip for skip in book.skips_before(here.file, _loop_end(left[-1])) if skip.kind == "break"]
    if not fetched_less and skips:
        skip = skips[0] if len(skips) == 1 else None
        how = f"the {skip.kind} in {file_name(outer.stack)}:{skip.line}" if skip else "a continue, an exception handler or an early return"
        line = Frame(here.file, skip.line, here.function) if skip else None
        return Blame("RW201", outer.ranks, f"it went as many rounds but took part in fewer {inner.op}: {how} skips it", line)
    if breaks and not _ran_out_of_data(job, outer.ranks[0], inner.ranks[0]):
        line = Frame(here.file, breaks[0].line, here.function) if len(breaks) == 1 else None
        condition = f" when `{breaks[0].guard}`" if breaks[0].guard else ""
        return Blame(
            "RW219", outer.ranks, f"the break in {os.path.basename(here.file)}:{breaks[0].line}{condition} is decided per rank", line
        )
    for frame in _below(inner.stack, here):
        returns = [s for s in book.skips_before(frame.file, frame.line) if s.kind in ("return", "except") and s.line < frame.line]
        if returns and not fetched_less:
            line = Frame(frame.file, returns[0].line, frame.function) if len(returns) == 1 else None
            place = f"{os.path.basename(frame.file)}:{returns[0].line}"
            return Blame("RW201", outer.ranks, f"the {returns[0].kind} in {place} leaves {frame.function}() before its {inner.op}", line)
    why = f"it has left the loop in {os.path.basename(here.file)}:{left[-1][0]} that the others are still in: it has fewer batches (uneven data)"
    return Blame("RW213", outer.ranks, why)


def _by_early_return(book: SourceBook, inner: Side, outer: Side) -> Blame | None:
    """Both came through the same function; one side is already further down, out of the call that the other is still in."""
    shared = common_frames(inner.stack, outer.stack)
    if shared is None or shared[1].line <= shared[0].line:
        return None
    for frame in _below(inner.stack, shared[0]):
        skips = [s for s in book.skips_before(frame.file, frame.line) if s.kind in ("return", "except") and s.line < frame.line]
        if skips:
            line = Frame(frame.file, skips[0].line, frame.function) if len(skips) == 1 else None
            place = f"{os.path.basename(frame.file)}:{skips[0].line}"
            return Blame("RW201", outer.ranks, f"the {skips[0].kind} in {place} leaves {frame.function}() before its {inner.op}", line)
    return None


def _by_missing_gradients(job: JobEvidence, inner: Side, outer: Side) -> Blame | None:
    """One side reduces gradients; the other has been through just as many backwards, and is past the one the first is in."""
    if inner.inside != "backward" or outer.inside in ("backward", "forward", "ddp"):
        return None
    mine, theirs = (job.ranks[side.ranks[0]].counts for side in (inner, outer))
    last = next((call for call in reversed(job.ranks[outer.ranks[0]].calls) if call.op == "backward"), None)
    if not last or last.is_open or any(mine.get(op, 0) == 0 or mine.get(op) != theirs.get(op) for op in ("forward", "backward")):
        return None
    why = (
        "it went through its backward as often as the others, but reduced fewer gradients in the last one: "
        "some parameters took no part in its loss, or that backward ran under no_sync()"
    )
    return Blame("RW215", outer.ranks, why, top_of(user_frames(last.stack)))


def _by_counts(job: JobEvidence, book: SourceBook, sides: list[Side]) -> Blame | None:
    """DDP forwards without a backward: a rank with more of them than the others skipped a backward, or evaluates through the wrapper."""
    surplus = {side.ranks[0]: _forward_surplus(job, side) for side in sides}
    if any(value is None for value in surplus.values()) or len(set(surplus.values())) == 1:
        return None
    most = max(sides, key=lambda side: surplus[side.ranks[0]] or 0)
    line = None
    backward = next((call for call in reversed(job.ranks[most.ranks[0]].calls) if call.op == "backward" and call.stack), None)
    frame = top_of(user_frames(backward.stack)) if backward else None
    skips = [s for s in book.skips_before(frame.file, frame.line) if s.kind in ("continue", "except") or s.in_handler] if frame else []
    if frame and len(skips) == 1:
        line = Frame(frame.file, skips[0].line, frame.function)
    if most.inside == "forward" and not skips:
        return Blame("RW209", most.ranks, "it ran more forwards through the DDP wrapper than backwards, as an evaluation does")
    return Blame(
        "RW201", most.ranks, "it ran a forward without the backward that the others ran, so it is one gradient all_reduce behind", line
    )


def _by_majority(job: JobEvidence, sides: list[Side]) -> Blame | None:
    largest, rest = sides[0], sides[1:]
    others = sorted(rank for side in rest for rank in side.ranks)
    if len(largest.ranks) <= len(others):
        return None
    why = f"{verb(largest.ranks, 'agrees', 'agree')} on {op_text(largest)}; {verb(others, 'does', 'do')} not"
    return Blame("RW202" if len(rest) > 1 else "RW203", others, why)


def _by_branch(job: JobEvidence, book: SourceBook, a: Side, b: Side) -> Blame | None:
    """Both came through the same function, in which only one side took a branch that depends on the rank."""
    shared = common_frames(a.stack, b.stack)
    world = job.world_size or len(job.ranks)
    frames = [frame for frame in a.stack if shared and (frame.file, frame.function) == (shared[0].file, shared[0].function)]
    for frame in [*frames, *[f for f in a.stack if any(f.function == g.function for g in b.stack)]]:
        taken = book.branch_taken_by(frame, [*a.ranks, *b.ranks], world)
        if taken is not None:
            ranks, line = taken
            why = f"only {ranks_text(ranks)} took the branch in {os.path.basename(frame.file)}:{line}, after which the order of collectives differs (mismatch)"
            return Blame("RW203", sorted(ranks), why)
    return None


def _no_common_reason(sides: list[Side]) -> str:
    return f"{' and '.join(op_text(side) for side in sides)} stand in the same slot: every rank must call the same collectives in the same order"


def minority(values: dict[str, list[int]]) -> list[int]:
    groups = list(values.values())
    total = sum(map(len, groups))
    return sorted(rank for ranks in groups[1:] for rank in ranks) if len(groups[0]) > total / 2 else []


def more_rounds(job: JobEvidence, inner: int, outer: int, by: tuple[str, ...] = ("next_batch", "forward")) -> bool:
    """True if the rank inside the loop has begun more rounds than the one outside."""
    a, b = job.ranks[inner].counts, job.ranks[outer].counts
    for op in by:
        if op in a or op in b:
            return a.get(op, 0) > b.get(op, 0)
    return False


def _forward_surplus(job: JobEvidence, side: Side) -> int | None:
    counts = job.ranks[side.ranks[0]].counts
    if "forward" not in counts:
        return None
    return counts["forward"] - counts.get("backward", 0) - (1 if side.inside == "forward" else 0)


def _ran_out_of_data(job: JobEvidence, rank: int, other: int) -> bool:
    """Every rank comes to the end of its data once an epoch: only one time more than the others counts."""
    return job.ranks[rank].counts.get("end_of_data", 0) > job.ranks[other].counts.get("end_of_data", 0)


def _below(stack: Stack, frame: Frame) -> Stack:
    """The frames that were called from a frame, innermost first."""
    return stack[: len(stack) - 1 - stack[::-1].index(frame)] if frame in stack else ()


def op_text(side: Side) -> str:
    return {
        "backward": f"{side.op} (gradients, in backward)",
        "forward": f"{side.op} (buffers, in the DDP module's forward)",
        "ddp": f"{side.op} (in the DDP constructor)",
    }.get(side.inside, side.op)


def top_of(stack: Stack) -> Frame | None:
    return stack[0] if stack else None


def file_name(stack: Stack) -> str:
    return os.path.basename(stack[0].file) if stack else "the script"


def _loop_end(loop: tuple[int, int]) -> int:
    return loop[1]
