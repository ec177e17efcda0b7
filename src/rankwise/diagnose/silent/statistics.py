"""BatchNorm's running statistics are different on each rank."""

from __future__ import annotations

from collections import Counter
from math import sqrt

from rankwise.diagnose.silent.audited_job import AuditedJob
from rankwise.evidence.audit import StepSeen
from rankwise.findings import Finding, ranks_text

_FAR = 0.5  # of a standard deviation
_MOMENTUM, _VERY_FAR = 0.1, 1.5  # what one batch moves the running mean by; how far the ranks' data has to be apart


def find(audited: AuditedJob) -> Finding | None:
    for ranks in audited.groups():
        steps = [found for found in audited.steps(ranks) if all(step.buffers for step in found.values())]
        names = _drifting(steps[-1]) if len(steps) > 1 else []
        if names and (found := _finding(audited, ranks, steps[-1], names[0])) is not None:
            return found
    return None


def _drifting(steps: dict[int, StepSeen]) -> list[str]:
    """Running statistics whose numbers differ; other buffers may be each rank's own on purpose."""
    sums = dict.fromkeys((name, checksum) for step in steps.values() for name, checksum, _ in step.buffers)
    times = Counter(name for name, _ in sums)
    return [name for name, num in times.items() if num > 1 and name.rsplit(".", 1)[-1] in ("running_mean", "running_var")]


def _finding(audited: AuditedJob, ranks: list[int], steps: dict[int, StepSeen], drifting: str) -> Finding | None:
    """The finding; only a note where DDP sends rank 0's statistics to all, because then they differ by one batch only."""
    a, b = steps[ranks[0]], steps[ranks[1]]
    is_sent = all(wrapper.broadcast_buffers for wrapper in audited.audits[ranks[0]].wrappers)
    far, name, mean_a, mean_b = _farthest(a, b)
    if is_sent and far < _MOMENTUM * _VERY_FAR:
        return None
    how = "only rank 0's count (broadcast_buffers)" if is_sent else "each rank evaluates with its own (broadcast_buffers=False)"
    return audited.proven(
        "RW774",
        f"BatchNorm running statistics differ per rank: {drifting} is not the same on {ranks_text(ranks)}",
        {rank: _site(audited, rank) for rank in ranks},
        f"at step {a.n} {name}[…] is {mean_a:.4g} on rank {ranks[0]} and {mean_b:.4g} on rank {ranks[1]}, "
        f"{far:.1f} standard deviations apart; {how}",
        severity="warning" if far >= _FAR and not is_sent else "info",
    )


def _farthest(a: StepSeen, b: StepSeen) -> tuple[float, str, float, float]:
    """The pair of running means that are farthest apart, in standard deviations."""
    values_a, values_b = ({name: numbers for name, _, numbers in step.buffers} for step in (a, b))
    best = (0.0, "running_mean", 0.0, 0.0)
    for name, means in values_a.items():
        variances = values_a.get(name.replace("running_mean", "running_var"), ())
        if not name.endswith("running_mean") or name not in values_b:
            continue
        for x, y, variance in zip(means, values_b[name], variances):
            best = max(best, (abs(x - y) / sqrt(max(variance, 1e-12)), name, x, y))
    return best


def _site(audited: AuditedJob, rank: int) -> int | None:
    wrappers = audited.audits[rank].wrappers
    return next((w.site for w in wrappers if not w.broadcast_buffers), wrappers[0].site if wrappers else None)
