"""Training that runs but trains wrong: each file knows one kind, reads the ranks' audits side by side, and returns findings with proof."""

from __future__ import annotations

from rankwise.causes import load_cause
from rankwise.diagnose.silent import (
    accumulation,
    augmentation,
    diverged,
    files,
    held_elsewhere,
    links,
    not_finite,
    order,
    repeated_order,
    reporting,
    same_samples,
    scaling,
    shards,
    skipped_step,
    slow,
    statistics,
    workers,
    wrong_tool,
)
from rankwise.diagnose.silent.audited_job import AuditedJob
from rankwise.evidence.records import JobEvidence
from rankwise.findings import Finding

# In the order in which one explains the other: what comes first is told first where several are of the same severity.
_KINDS = (
    workers, same_samples, repeated_order, augmentation, order, held_elsewhere, not_finite, scaling, accumulation, skipped_step,
    diverged, statistics, files, reporting, shards, wrong_tool, slow, links,
)  # fmt: skip
_WEIGHT = {"error": 0, "warning": 1, "info": 2}


def find_silent(job: JobEvidence) -> list[Finding]:
    """All that was found, what is worst first."""
    if not any(evidence.audit.sites for evidence in job.ranks.values()):
        return []
    audited = AuditedJob(job)
    found = [finding for kind in _KINDS for finding in kind.find(audited)]
    codes = {finding.code for finding in found}
    found = [finding for finding in found if not codes & set(load_cause(finding.code).echo_of)]
    return sorted(found, key=lambda finding: _WEIGHT[finding.severity])


def is_silent(finding: Finding) -> bool:
    """Whether a finding is about training that runs: no reason to stop a job, and none to call it stalled."""
    return load_cause(finding.code).silent
