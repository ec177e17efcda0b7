"""Mixed precision in the wrong order: clipped before unscaling, or only one half of the GradScaler used."""

from __future__ import annotations

from collections.abc import Callable

from rankwise.diagnose.silent.audited_job import AuditedJob, num_backwards
from rankwise.evidence.audit import Window
from rankwise.findings import Finding

_LEAST = 2


def find(audited: AuditedJob) -> Finding | None:
    if found := _windows(audited, lambda w: "c" in w.pattern and "g" in w.pattern):
        one = next(iter(found.values()))
        return audited.proven(
            "RW764",
            "gradients are clipped before they are unscaled: the limit is applied to gradients multiplied by the GradScaler's loss scale",
            {rank: window.places.get("c") for rank, window in found.items()},
            f"in {one.count} steps in a row: scale, backward, clip, {'unscale_, ' if 'u' in one.pattern else ''}step; "
            "unscale_ has to come before the clipping",
        )
    if found := _windows(
        audited, lambda w: "g" in w.pattern and not w.pattern.endswith("G") and "u" not in w.pattern and num_backwards(w.pattern) > 0
    ):
        return _misused(audited, found, "the loss is scaled by the GradScaler, but the optimizer steps by itself with the scaled gradients")
    if found := _windows(audited, lambda w: w.pattern.endswith("G") and "g" not in w.pattern and num_backwards(w.pattern) > 0):
        return _misused(audited, found, "the GradScaler steps and divides gradients of a loss that it never scaled")
    return None


def _windows(audited: AuditedJob, is_so: Callable[[Window], bool]) -> dict[int, Window]:
    """The last such window of each rank that has several."""
    found = {rank: [w for w in audit.windows if is_so(w)] for rank, audit in audited.audits.items()}
    return {rank: windows[-1] for rank, windows in found.items() if sum(w.count for w in windows) >= _LEAST}


def _misused(audited: AuditedJob, found: dict[int, Window], what: str) -> Finding:
    return audited.proven(
        "RW765",
        what,
        {rank: window.site for rank, window in found.items()},
        f"seen in {next(iter(found.values())).count} steps in a row; scaler.scale(loss), scaler.step(optimizer) and scaler.update() belong together",
    )
