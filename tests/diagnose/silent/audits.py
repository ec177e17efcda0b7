"""Synthetic audits, side by side. Site number n is line n of train.py, so that a culprit's line says which site was taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rankwise.diagnose.silent.audited_job import AuditedJob
from rankwise.evidence.audit import Audit, Row, StepSeen, Wrapper
from rankwise.findings import Finding
from tests.diagnose.jobs import job, rank, stack_of

SITES = {n: stack_of(f"train.py:{n} main") for n in range(1, 50)}
DDP = Wrapper(3, True, (0, 1), 10, 4000)


def audited(*audits: Audit, **facts: Any) -> AuditedJob:
    """A job of one rank for each of these audits; `facts` are those of the job."""
    return AuditedJob(job(*[replace(rank(r, []), audit=replace(audit, sites=SITES)) for r, audit in enumerate(audits)], **facts))


def step(n: int, *rows: Row, site: int = 20, settings: str = "lr=0.1", state: int | None = None, **facts: Any) -> StepSeen:
    facts = {"i": 0, "syncs": n + 1, "joined": False, "hooked": False, "of_model": True, "buffers": (), **facts}
    return StepSeen(n=n, rows=rows, settings=settings, state=state, site=site, **facts)


def row(name: str = "weight", *, gradient: int = 5, weight: int = 7, is_reduced: bool = True) -> Row:
    """A parameter by the checksums of its gradient and its weights, which serve as their norms, too."""
    return name, is_reduced, gradient, float(gradient), weight, float(weight)


def lines(finding: Finding) -> dict[int | None, int | None]:
    """The lines of the culprits, by rank."""
    return {place.rank: place.line for place in finding.culprits}
