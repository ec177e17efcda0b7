"""The optimizer holds parameters that are not the model's."""

from __future__ import annotations

from rankwise.diagnose.silent.audited_job import AuditedJob
from rankwise.evidence.audit import OptimizerSeen
from rankwise.findings import Finding

_LOOKED_AT = 4  # by this step a model has its final form; the probe reports foreign parameters of the first few steps only


def find(audited: AuditedJob) -> Finding | None:
    found = {rank: one for rank in audited.audits if (one := _foreign(audited, rank)) is not None}
    if not found:
        return _some_elsewhere(audited)
    one = next(iter(found.values()))
    return audited.proven(
        "RW702",
        f"the optimizer updates parameters that the model does not hold: none of its {one.held} is a parameter of the wrapped model",
        {rank: seen.built or seen.site for rank, seen in found.items()},
        f"at its first step {one.model_with_grad} parameters of the wrapped model had gradients, and none of the optimizer's: "
        "it was built from another copy of the model (stale parameters), so the model that computes the loss never changes",
        severity="warning",
    )


def _some_elsewhere(audited: AuditedJob) -> Finding | None:
    """A layer was replaced: the optimizer still holds the old one, and no optimizer holds the new one."""
    for rank, audit in audited.audits.items():
        latest = {step.i: step for step in audit.steps if step.n == _LOOKED_AT}
        if not latest:
            continue
        unheld = set.intersection(*(set(step.unheld) for step in latest.values()))
        stale = next((step for step in latest.values() if step.foreign), None)
        if unheld and stale is not None:
            name = sorted(unheld)[0]
            return audited.proven(
                "RW702",
                f"the optimizer does not hold parameter {name} of the model, which gets gradients, and holds {stale.foreign} others that get none",
                {r: audited.built(r, stale.i) for r in audited.audits},
                f"seen at step {stale.n} of rank {rank}: the model was changed after the optimizer was built, so {name} is never updated",
                severity="warning",
            )
    return None


def _foreign(audited: AuditedJob, rank: int) -> OptimizerSeen | None:
    """An optimizer without any of the model's parameters, if no optimizer of the rank holds one."""
    audit = audited.audits[rank]
    if not audit.wrappers or not audit.optimizers or any(one.of_model for one in audit.optimizers):
        return None
    return next((one for one in audit.optimizers if one.held and not one.with_grad and one.model_with_grad), None)
