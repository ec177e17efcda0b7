"""Ranks that are in different collectives: who is to blame, by the strongest argument, and the finding that says so."""

from __future__ import annotations

from dataclasses import replace

from rankwise.diagnose.blame import (
    Blame,
    Side,
    by_branch,
    by_majority,
    by_missing_gradients,
    by_rank_condition,
    by_sync_off,
    finding_of,
    undecided,
)
from rankwise.diagnose.divergence import blame_for_divergence, side_of
from rankwise.diagnose.history import Divergence, find_divergence, history_of, key_of
from rankwise.diagnose.rank_state import RankStates
from rankwise.diagnose.waiting import members_of
from rankwise.diagnose.wording import verb
from rankwise.evidence.records import Frame, JobEvidence
from rankwise.findings import Finding, ranks_text
from rankwise.source.book import SourceBook

_ODD_ONE_OUT = ("RW201", "RW208", "RW209")  # about what a few ranks did: that most ranks did otherwise is proof enough


def finding_of_sides(job: JobEvidence, states: RankStates, book: SourceBook, sides: list[Side], slot: str, deadlock: bool) -> Finding:
    group = states[sides[0].ranks[0]].group
    divergences = [find_divergence(job, sides[0].ranks[0], other.ranks[0], group) for other in sides[1:]]
    blame = _blame(job, book, sides, divergences)
    return finding_of(job, states, blame, sides, _headline(blame, sides, divergences[0]), slot=f" ({slot})", deadlock=deadlock)


def _blame(job: JobEvidence, book: SourceBook, sides: list[Side], divergences: list[Divergence | None]) -> Blame:
    """Who is to blame, by the strongest argument there is; where there is none, both sides are named."""
    found = []
    for divergence, other in zip(divergences, sides[1:], strict=True):
        one = by_sync_off(job, book, sides[0], other) or by_sync_off(job, book, other, sides[0])
        if one is None and divergence is not None:
            one = blame_for_divergence(job, book, divergence, sides[0].ranks, other.ranks)
        elif one is None:
            one = (
                by_missing_gradients(job, sides[0], other)
                or by_missing_gradients(job, other, sides[0])
                or by_rank_condition(job, book, [sides[0], other])
            )
        if one is not None:
            found.append(one)
    agreed = found[0] if found and len(found) == len(sides) - 1 and len({(one.code, one.certain) for one in found}) == 1 else None
    if agreed is not None:
        agreed = replace(agreed, ranks=sorted({rank for one in found for rank in one.ranks}))
    most = by_majority(sides)
    branch = by_branch(job, book, sides[0], sides[1]) if agreed is None or not agreed.certain else None
    if branch is not None:
        return branch
    if agreed is not None and most is not None and set(most.ranks) < set(agreed.ranks):
        return replace(agreed, ranks=most.ranks)  # the argument says how they diverged, the majority says who did
    if agreed is not None and (agreed.certain or most is None or agreed.ranks == most.ranks):
        return replace(agreed, certain=agreed.certain or (most is not None and agreed.code in _ODD_ONE_OUT))
    if most is not None or divergences[0] is None:
        return most or undecided(sides)
    first, second = sides[:2] if divergences[0].mine.rank in sides[0].ranks else sides[1::-1]
    return undecided([side_of(first.ranks, divergences[0].next), side_of(second.ranks, divergences[0].next_other), *sides[2:]])


def _headline(blame: Blame, sides: list[Side], divergence: Divergence | None) -> str:
    """One short sentence: who, and what."""
    who = ranks_text(blame.ranks)
    theirs = next((side for side in sides if set(side.ranks) & set(blame.ranks)), sides[0])
    others = next((side for side in sides if side is not theirs), theirs)
    alone, missed = theirs, others
    if divergence is not None:
        first, second = sides[:2] if divergence.mine.rank in sides[0].ranks else sides[1::-1]
        ways = [side_of(first.ranks, divergence.next), side_of(second.ranks, divergence.next_other)]
        alone, missed = ways if set(ways[0].ranks) & set(blame.ranks) else ways[::-1]
    rest = verb(others.ranks, "waits", "wait")
    is_in_it = missed.short_text == others.short_text
    return {
        "RW201": f"{who} skipped {missed.short_text} that {rest} in"
        if is_in_it
        else f"{who} skipped {missed.short_text}; {rest} in {others.short_text}",
        "RW202": f"{ranks_text(sides[0].ranks)} and {ranks_text([r for side in sides[1:] for r in side.ranks])} are in different collectives",
        "RW203": f"{who} calls collectives in a different order",
        "RW208": f"only {who} called {alone.short_text}; {rest} in {others.short_text}",
        "RW209": f"only {who} ran a forward through the DDP wrapper; {rest} in {others.short_text}",
        "RW213": f"{who} finished with fewer batches; {rest} in {others.short_text}",
        "RW402": f"{who} left; {rest} in {others.short_text}",
        "RW215": f"{who} reduced fewer gradients in the last backward; {rest} in {others.short_text}",
        "RW221": f"{ranks_text(sides[0].ranks)} and {ranks_text([r for side in sides[1:] for r in side.ranks])} went different numbers of rounds in a loop"
        if len(blame.ranks) == sum(len(side.ranks) for side in sides)
        else f"{who} went another number of rounds in the loop; {rest} in {others.short_text}",
        "RW219": f"{who} left the loop early; {rest} in {others.short_text}",
        "RW220": f"{who} ran a step with gradient sync off; {rest} in {others.short_text}",
    }[blame.code]


def find_out_of_step(job: JobEvidence, states: RankStates, book: SourceBook, failed: list[int]) -> Finding | None:
    """Ranks that were no longer in step when a collective failed on some of them: its error is only a consequence."""
    sides: dict[object, list[int]] = {}
    last = {rank: history.calls[-1] for rank, e in sorted(job.ranks.items()) if (history := history_of(e)).calls}
    for rank in failed[:1]:  # only the members of the failed collective's group have to be in step
        last = {r: last[r] for r in members_of(job, last[rank].group, rank) if r in last} if rank in last else last
    for rank, call in last.items():
        sides.setdefault(key_of(call), []).append(rank)
    ordered = sorted(sides.values(), key=lambda ranks: -len(ranks))
    if len(ordered) == 1:  # all are in the same call, but some may have made it more often
        diverged = [rank for rank in ordered[0][1:] if find_divergence(job, ordered[0][0], rank) is not None]
        ordered = [[rank for rank in ordered[0] if rank not in diverged], diverged] if diverged else ordered
    if len(ordered) < 2 or find_divergence(job, ordered[0][0], ordered[1][0]) is None:
        return None
    if any(set(ranks) - set(members_of(job, last[other[0]].group)) for ranks in ordered for other in ordered):
        return None  # some ranks are not members of the collective's group, so they need not call it
    return finding_of_sides(job, states, book, [side_of(ranks, last[ranks[0]]) for ranks in ordered], "as their last calls show", True)


def merged(sides: list[Side]) -> list[Side]:
    found: dict[tuple[str, Frame | None], Side] = {}
    for side in sides:
        key = (side.op, side.frame)
        earlier = found.get(key)
        found[key] = Side(sorted({*side.ranks, *(earlier.ranks if earlier else [])}), side.op, side.stack, side.inside)
    return sorted(found.values(), key=lambda side: -len(side.ranks))
