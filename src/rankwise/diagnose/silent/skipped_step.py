"""A rank makes fewer optimizer steps than the others, from the same reduced gradients."""

from __future__ import annotations

from rankwise.causes import load_cause
from rankwise.diagnose.silent.scene import Scene
from rankwise.evidence.audit import StepSeen
from rankwise.findings import Finding, ranks_text

_LEAST = 2  # steps at which the weights have to be different


def find(scene: Scene) -> list[Finding]:
    for ranks in scene.groups():
        if not all(scene.audits[rank].wrappers for rank in ranks) or any(
            s.joined or s.hooked for r in ranks for s in scene.audits[r].steps
        ):
            continue
        for seen in _by_reductions(scene, ranks):
            apart = [steps for steps in seen if len({step.n for step in steps.values()}) > 1 and _differ(steps)]
            if len(apart) >= _LEAST:
                return [_finding(scene, apart)]
    return []


def _by_reductions(scene: Scene, ranks: list[int]) -> list[list[dict[int, StepSeen]]]:
    """Of each optimizer: the steps of all ranks that came after the same number of reductions, in order."""
    found = []
    for i in sorted({step.i for step in scene.audits[ranks[0]].steps}):
        by_rank = {rank: {s.syncs: s for s in scene.audits[rank].steps if s.i == i and s.of_model} for rank in ranks}
        common = sorted(set.intersection(*(set(steps) for steps in by_rank.values())))
        found.append([{rank: by_rank[rank][n] for rank in ranks} for n in common])
    return found


def _differ(steps: dict[int, StepSeen]) -> bool:
    sums: dict[str, set[int]] = {}
    for step in steps.values():
        for name, _, _, _, checksum, _ in step.rows:
            if checksum is not None:
                sums.setdefault(name, set()).add(checksum)
    return any(len(found) > 1 for found in sums.values())


def _finding(scene: Scene, apart: list[dict[int, StepSeen]]) -> Finding:
    first = apart[0]
    most = max(step.n for step in first.values())
    fewer = [rank for rank, step in first.items() if step.n < most]
    syncs = next(iter(first.values())).syncs
    told = ", ".join(f"rank {rank} {step.n}" for rank, step in list(first.items())[:8])
    return load_cause("RW770").finding(
        f"{ranks_text(fewer)} skipped optimizer steps that the others made, so the weights differ between ranks",
        certain=True,
        culprits=tuple(scene.place(rank, first[rank].site) for rank in fewer),
        why=f"steps made when DDP had reduced {syncs} times: {told}; the weights before the next step are different, as at {len(apart)} steps "
        "looked at",
        instead=(
            "decide on one rank whether to step, and tell the others (broadcast), or decide from numbers that are the same on all ranks",
        ),
    )
