"""Training that runs but trains wrong: each file finds one kind of fault in what the probe noted of each step, and proves it.

Begin with `audited_job`, which holds what all ranks noted, then `same_samples`, an example of a finding. `find_silent` below calls all files.
"""

from __future__ import annotations

from rankwise.causes import load_cause
from rankwise.diagnose.silent import (
    accumulation,
    augmentation,
    diverged,
    held_elsewhere,
    not_finite,
    order,
    repeated_order,
    reporting,
    same_file,
    same_samples,
    scaling,
    shards,
    skipped_step,
    slow,
    slow_link,
    statistics,
    wrong_tool,
)
from rankwise.diagnose.silent.audited_job import AuditedJob
from rankwise.evidence.records import JobEvidence
from rankwise.findings import Finding

# A fault that explains others comes before them: findings of the same severity are told in this order.
_KINDS = (
    same_samples.find_repeating_workers, same_samples.find, repeated_order.find, augmentation.find, order.find, held_elsewhere.find,
    not_finite.find, scaling.find, accumulation.find_thrown_away, accumulation.find_short_window, accumulation.find_not_divided,
    accumulation.find_reduced_each_time, skipped_step.find, diverged.find, statistics.find, same_file.find, reporting.find, shards.find_uneven,
    shards.find_whole_on_each, shards.find_padded, wrong_tool.find_data_parallel, wrong_tool.find_inference, slow.find_small_buckets,
    slow.find_wait_for_data, slow.find_own_collectives, slow_link.find,
)  # fmt: skip
_WEIGHT = {"error": 0, "warning": 1, "info": 2}


def find_silent(job: JobEvidence) -> list[Finding]:
    """All that was found, the worst first."""
    if not any(evidence.audit.sites for evidence in job.ranks.values()):
        return []
    audited = AuditedJob(job)
    found = [finding for find in _KINDS if (finding := find(audited)) is not None]
    codes = {finding.code for finding in found}
    found = [finding for finding in found if not codes & set(load_cause(finding.code).echo_of)]
    return sorted(found, key=lambda finding: _WEIGHT[finding.severity])


def is_silent(finding: Finding) -> bool:
    """Whether a finding is about training that runs: no reason to stop a job, and none to call it stalled."""
    return load_cause(finding.code).silent
