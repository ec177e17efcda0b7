"""Decides which ranks are to blame when ranks stand in different places: by rank conditions, loops, counts, majority, branches."""

from __future__ import annotations

import os
from dataclasses import dataclass

from rankwise.causes import load_cause
from rankwise.diagnose.history import different_modes
from rankwise.diagnose.rank_state import RankState, RankStates, place_at, wait_of
from rankwise.diagnose.wording import at, op_text, short_op_text, verb
from rankwise.evidence.collective_log import WRAPPER_CALLS
from rankwise.evidence.frames import user_frame
from rankwise.evidence.records import Frame, JobEvidence, Stack
from rankwise.findings import Finding, Place, ranks_text
from rankwise.source.book import SourceBook, common_frames

COMPARE = ("compare the lines named above: each of these ranks does what the other does not",)


@dataclass(frozen=True)
class Side:
    """The ranks that stand together in one place."""

    ranks: list[int]
    op: str
    stack: Stack
    inside: str = ""

    @classmethod
    def at(cls, ranks: list[int], state: RankState) -> Side:
        """The side of ranks that all wait where one of them does."""
        return cls(ranks, state.op, state.stack, state.inside)

    @property
    def frame(self) -> Frame | None:
        return self.stack[0] if self.stack else None

    @property
    def text(self) -> str:
        return op_text(self.op, self.inside)

    @property
    def short_text(self) -> str:
        return short_op_text(self.op, self.inside)


@dataclass(frozen=True)
class Blame:
    code: str
    ranks: list[int]
    why: str
    line: Frame | None = None  # the line that caused it, where one can be told
    certain: bool = True
    candidates: tuple[Frame, ...] = ()  # one of these lines caused it, where it is not known which


def by_rank_condition(job: JobEvidence, book: SourceBook, sides: list[Side]) -> Blame | None:
    """Only some ranks make a call under `if rank == …`; where the others have such a call of their own, they are to blame for missing it."""
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
    condition = f"`{guard.text}` ({guard.place})" if guard else "a condition on the rank"
    line = guard.frame if guard else None
    twin = next((frame for frame in side.stack if _has_twin(book, side, frame, others, world)), None)
    if twin is not None:
        skip = next((s for s in book.skips_before(twin.file, book.end_of_function(twin.file, twin.line)) if s.kind == "return"), None)
        line = Frame(twin.file, skip.line, twin.function) if skip else None
        left = f": the return in line {skip.line} skips it" if skip else ""
        return Blame("RW201", others, f"{twin.function}() has a {side.op} for {ranks_text(others)} too, which was not reached{left}", line)
    if side.inside == "forward":
        why = f"the forward stands under {condition}; DDP broadcasts its buffers in forward, and the other ranks take no part"
        return Blame("RW209", side.ranks, why, line)
    return Blame("RW208", side.ranks, f"the call stands under {condition}, so {verb(others, 'never makes', 'never make')} it", line)


def _has_twin(book: SourceBook, side: Side, frame: Frame, others: list[int], world: int) -> bool:
    """Whether the others have a call of the same collective in this function; DDP's own calls inside a forward have none."""
    return not side.inside and book.has_twin_call(frame, side.op, others, side.ranks, world)


def _by_two_conditions(book: SourceBook, sides: list[Side], guarded: list[tuple[Side, list[int]]], world: int) -> Blame | None:
    """Each side's call stands under a condition of its own: `if rank == 0: all_reduce(x) else: broadcast(x)`.

    None where both sides make both calls, only in another order.
    """
    for side, others in guarded:
        if any(_has_twin(book, side, frame, others, world) for frame in side.stack):
            return None
    ranks = minority({str(i): side.ranks for i, side in enumerate(sides)}) or sorted(rank for side in sides for rank in side.ranks)
    return Blame("RW202", ranks, f"conditions on the rank lead to {' and '.join(side.text for side in sides)}: they cannot meet")


def by_sync_off(job: JobEvidence, book: SourceBook, inner: Side, outer: Side) -> Blame | None:
    """One side reduces gradients, the other is past them: it ran the same forward with the synchronisation of gradients switched off."""
    if inner.inside != "backward":
        return None
    forward = different_modes(job, outer.ranks[0], inner.ranks[0], "no_sync")
    if forward is None:
        return None
    lines = book.lines_that_stop_sync()
    decided_at = f"; {os.path.basename(lines[0].file)}:{lines[0].line} decides it" if len(lines) == 1 else ""
    why = (
        f"the gradient synchronisation was off (no_sync, require_backward_grad_sync) in its forward{at(user_frame(forward.stack))}, "
        f"and on for {ranks_text(inner.ranks)} in the same step, so it made one gradient all_reduce less{decided_at}"
    )
    return Blame("RW220", outer.ranks, why, lines[0] if len(lines) == 1 else None)


def by_missing_gradients(job: JobEvidence, inner: Side, outer: Side) -> Blame | None:
    """One side reduces gradients; the other made as many backwards and is past its last one, so that one reduced fewer gradients."""
    if inner.inside != "backward" or outer.inside in WRAPPER_CALLS:
        return None
    mine, theirs = (job.ranks[side.ranks[0]].counts for side in (inner, outer))
    last = next((call for call in reversed(job.ranks[outer.ranks[0]].calls) if call.op == "backward"), None)
    if not last or last.is_open or any(mine.get(op, 0) == 0 or mine.get(op) != theirs.get(op) for op in ("forward", "backward")):
        return None
    why = (
        "it went through its backward as often as the others, but reduced fewer gradients in the last one: "
        "some parameters took no part in its loss, or that backward ran under no_sync()"
    )
    return Blame("RW215", outer.ranks, why, user_frame(last.stack))


def by_majority(sides: list[Side]) -> Blame | None:
    largest, rest = sides[0], sides[1:]
    others = sorted(rank for side in rest for rank in side.ranks)
    if len(largest.ranks) <= len(others):
        return None
    why = f"{verb(largest.ranks, 'agrees', 'agree')} on {largest.text}; {verb(others, 'does', 'do')} not"
    return Blame("RW202", others, why)


def by_branch(job: JobEvidence, book: SourceBook, a: Side, b: Side) -> Blame | None:
    """Both came through the same function, in which only one side took a branch that depends on the rank."""
    shared = common_frames(a.stack, b.stack)
    if shared is None or shared[0] != shared[1]:  # only where one line calls both, as `for part in order: part()` does
        return None
    taken = book.branch_taken_by(shared[0], [*a.ranks, *b.ranks], job.world_size or len(job.ranks))
    if taken is None:
        return None
    ranks, line = taken
    place = f"{os.path.basename(shared[0].file)}:{line}"
    why = f"only {ranks_text(ranks)} took the branch in {place}, after which the order of collectives differs (mismatch)"
    return Blame("RW203", sorted(ranks), why, certain=False)


def undecided(sides: list[Side]) -> Blame:
    """Both sides are named, and no single reason or fix is given."""
    sides_text = " and ".join(f"{side.text}{at(side.frame)}" for side in sides)
    why = f"{sides_text} came in the same place; neither the code nor what the ranks did before tells who went another way: compare these lines"
    return Blame("RW202", sorted(rank for side in sides for rank in side.ranks), why, certain=False)


def finding_of(
    job: JobEvidence, states: RankStates, blame: Blame, sides: list[Side], summary: str, *, slot: str = "", deadlock: bool = True
) -> Finding:
    """The finding for a blame: who is to blame and where, who waits, why, and what each side is in."""
    now = "; ".join(f"{verb(side.ranks, 'is', 'are')} in {side.text}{at(side.frame)}" for side in sides)
    all_ranks = [(rank, side) for side in sides for rank in side.ranks]
    return load_cause(blame.code).finding(
        summary,
        certain=blame.certain,
        culprits=tuple(place for rank, side in all_ranks if rank in blame.ranks for place in _places(job, rank, blame, side.frame)),
        waiting=tuple(wait_of(states[rank]) for rank, _ in all_ranks if rank not in blame.ranks and states[rank].kind == "waiting"),
        why=f"{blame.why}; {now}{slot}",
        deadlock=deadlock,
        instead=() if blame.certain else COMPARE,
    )


def _places(job: JobEvidence, rank: int, blame: Blame, now: Frame | None) -> list[Place]:
    """The line that led a rank astray, or the lines that may have, and where it is now."""
    lines = [blame.line] if blame.line is not None else [*blame.candidates]
    return [place_at(job.ranks[rank], frame) for frame in dict.fromkeys([*lines, now]) if frame is not None or not lines]


def minority(values: dict[str, list[int]]) -> list[int]:
    groups = list(values.values())
    total = sum(map(len, groups))
    return sorted(rank for ranks in groups[1:] for rank in ranks) if len(groups[0]) > total / 2 else []
