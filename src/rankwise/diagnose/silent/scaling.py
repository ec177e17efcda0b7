"""Mixed precision in the wrong order: clipped before unscaling, or only one half of the GradScaler used."""

from __future__ import annotations

from collections.abc import Callable

from rankwise.causes import load_cause
from rankwise.diagnose.silent.audited_job import AuditedJob, num_backwards
from rankwise.evidence.audit import Window
from rankwise.findings import Finding

_LEAST = 2


def find(audited: AuditedJob) -> list[Finding]:
    clipped = {rank: found for rank in audited.audits if (found := _windows(audited, rank, _clips_scaled)) is not None}
    if clipped:
        return [_clipped(audited, clipped)]
    direct = {rank: found for rank in audited.audits if (found := _windows(audited, rank, _steps_scaled)) is not None}
    if direct:
        return [
            _misused(audited, direct, "the loss is scaled by the GradScaler, but the optimizer steps by itself with the scaled gradients")
        ]
    unscaled = {rank: found for rank in audited.audits if (found := _windows(audited, rank, _divides_unscaled)) is not None}
    if unscaled:
        return [_misused(audited, unscaled, "the GradScaler steps and divides gradients of a loss that it never scaled")]
    return []


def _windows(audited: AuditedJob, rank: int, is_so: Callable[[Window], bool]) -> Window | None:
    found = [w for w in audited.audits[rank].windows if is_so(w)]
    return found[-1] if sum(w.count for w in found) >= _LEAST else None


def _clips_scaled(window: Window) -> bool:
    return "c" in window.pattern and "g" in window.pattern


def _steps_scaled(window: Window) -> bool:
    return "g" in window.pattern and not window.pattern.endswith("G") and "u" not in window.pattern and num_backwards(window.pattern) > 0


def _divides_unscaled(window: Window) -> bool:
    return window.pattern.endswith("G") and "g" not in window.pattern and num_backwards(window.pattern) > 0


def _clipped(audited: AuditedJob, found: dict[int, Window]) -> Finding:
    one = next(iter(found.values()))
    return load_cause("RW764").finding(
        "gradients are clipped before they are unscaled: the limit is applied to gradients multiplied by the GradScaler's loss scale",
        certain=True,
        culprits=tuple(audited.place(rank, window.places.get("c")) for rank, window in found.items()),
        why=f"in {one.count} steps in a row: scale, backward, clip, {'unscale_, ' if 'u' in one.pattern else ''}step; "
        "unscale_ has to come before the clipping",
    )


def _misused(audited: AuditedJob, found: dict[int, Window], what: str) -> Finding:
    one = next(iter(found.values()))
    return load_cause("RW765").finding(
        what,
        certain=True,
        culprits=tuple(audited.place(rank, window.site) for rank, window in found.items()),
        why=f"seen in {one.count} steps in a row; scaler.scale(loss), scaler.step(optimizer) and scaler.update() belong together",
    )
