"""A rank makes fewer optimizer steps than the others from the same reduced gradients, or one more from gradients that were not reduced."""

from __future__ import annotations

from rankwise.diagnose.silent.audited_job import BACKWARDS, AuditedJob, num_backwards
from rankwise.evidence.audit import StepSeen, Window
from rankwise.findings import Finding, ranks_text

_LEAST = 2  # steps at which the weights have to be different


def find(audited: AuditedJob) -> Finding | None:
    for ranks in audited.groups():
        if not all(audited.audits[rank].wrappers for rank in ranks) or any(
            s.joined or s.hooked for r in ranks for s in audited.audits[r].steps
        ):
            continue
        for seen in _by_reductions(audited, ranks):
            apart = [steps for steps in seen if len({step.n for step in steps.values()}) > 1 and _differ(steps)]
            if len(apart) >= _LEAST:
                return _finding(audited, apart)
    return None


def _by_reductions(audited: AuditedJob, ranks: list[int]) -> list[list[dict[int, StepSeen]]]:
    """For each optimizer, the steps of all ranks that came after the same number of reductions, in order."""
    found = []
    for i in sorted({step.i for step in audited.audits[ranks[0]].steps}):
        by_rank = {rank: {s.syncs: s for s in audited.audits[rank].steps if s.i == i and s.of_model} for rank in ranks}
        common = sorted(set.intersection(*(set(steps) for steps in by_rank.values())))
        found.append([{rank: by_rank[rank][n] for rank in ranks} for n in common])
    return found


def _differ(steps: dict[int, StepSeen]) -> bool:
    """Whether a parameter has other weights on one rank than on another."""
    sums = {(name, checksum) for step in steps.values() for name, _, _, _, checksum, _ in step.rows if checksum is not None}
    return len(sums) > len({name for name, _ in sums})


def _finding(audited: AuditedJob, apart: list[dict[int, StepSeen]]) -> Finding:
    first = apart[0]
    most = max(step.n for step in first.values())
    fewer = [rank for rank, step in first.items() if step.n < most]
    for rank in first:
        if rank not in fewer and (window := _without_reduction(audited, rank, first[rank])) is not None:
            return _not_reduced_once(audited, rank, window)
    syncs = next(iter(first.values())).syncs
    by_rank_text = ", ".join(f"rank {rank} {step.n}" for rank, step in list(first.items())[:8])
    return audited.proven(
        "RW770",
        f"{ranks_text(fewer)} skipped optimizer steps that the others made, so the weights differ between ranks",
        {rank: first[rank].site for rank in fewer},
        f"steps made when DDP had reduced {syncs} times: {by_rank_text}; the weights before the next step are different, as at {len(apart)} steps "
        "looked at",
        instead=(
            "decide on one rank whether to step, and tell the others (broadcast), or decide from numbers that are the same on all ranks",
        ),
    )


def _without_reduction(audited: AuditedJob, rank: int, step: StepSeen) -> Window | None:
    """The rank's window up to this step in which no backward reduced, though one does in all its others."""
    windows = [w for w in audited.audits[rank].windows if w.i == step.i and num_backwards(w.pattern)]
    odd = [w for w in windows if "s" not in w.pattern]
    return odd[0] if len(odd) == 1 and odd[0].count == 1 and odd[0].first <= step.n and len(windows) > 1 else None


def _not_reduced_once(audited: AuditedJob, rank: int, window: Window) -> Finding:
    made = num_backwards(window.pattern)
    usual = max(num_backwards(w.pattern) for w in audited.audits[rank].windows if w.i == window.i)
    less = (
        f"its other windows have {usual}: the micro-step that reduces was left out" if made < usual else "no_sync() was on in all of them"
    )
    letter = next(letter for letter in reversed(window.pattern) if letter in BACKWARDS)
    return audited.proven(
        "RW760",
        f"rank {rank} made a step from gradients that were not reduced, so the weights differ between ranks",
        {rank: window.places.get(letter, window.site)},
        f"before step {window.first} rank {rank} made {made} backwards, and DDP reduced none of them; {less}. Since then each of its reductions "
        "meets the others' of another step",
        instead=(
            "leave out the same micro-steps on all ranks (decide together: all_reduce the flag), and let the last one of a window reduce",
        ),
    )
