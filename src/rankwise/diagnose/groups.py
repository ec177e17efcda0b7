"""Process groups that not all ranks created, or not in the same order."""

from __future__ import annotations

from rankwise.causes import load_cause
from rankwise.diagnose.rank_state import RankStates, place_at, wait_of
from rankwise.diagnose.waiting import doomed_ranks
from rankwise.diagnose.wording import at
from rankwise.evidence.frames import user_frame
from rankwise.evidence.records import JobEvidence, NewGroup
from rankwise.findings import Finding, ranks_text


def find_group_disagreement(job: JobEvidence, states: RankStates) -> Finding | None:
    """`new_group` must be called by all ranks, also those outside the group, in the same order."""
    joined = {rank: evidence for rank, evidence in sorted(job.ranks.items()) if evidence.inits}
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
            waiting = {rank for rank in made if states[rank].op == "new_group"}
            if not waiting & doomed_ranks(job, states):
                return None  # the others may still come
        return _group_finding(job, states, made, i, values)
    return None


def _group_finding(
    job: JobEvidence,
    states: RankStates,
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
    frame = user_frame(mine[i].stack) if i < len(mine) else states[odd[0]].frame
    theirs = user_frame(made[agreeing[0]][i].stack)
    instead = f"called new_group({list(other)}){at(frame)} instead" if other is not None else f"is{at(frame)}" if frame else "is elsewhere"
    return load_cause(code).finding(
        f"{ranks_text(agreeing)} called new_group({list(wanted or ())}){at(theirs)}, but {ranks_text(odd)} {instead}",
        certain=True,
        culprits=tuple(place_at(job.ranks[rank], frame) for rank in odd),
        waiting=tuple(wait_of(states[rank]) for rank in agreeing if states[rank].kind == "waiting"),
        why="new_group must be called by every rank of the job, also by those outside the new group, in the same order"
        + (": here the order of the process groups differs" if swapped else ": one rank skipped it, so the groups' numbering differs"),
        deadlock=any(states[rank].op == "new_group" for rank in made) or bool(doomed_ranks(job, states)),
    )


def _skipped(longer: tuple[NewGroup, ...], shorter: tuple[NewGroup, ...], i: int) -> bool:
    """True if `longer` lacks what `shorter` has at i: then it is `longer` that skipped."""
    return i < len(shorter) and i + 1 < len(shorter) and i < len(longer) and longer[i].ranks == shorter[i + 1].ranks
