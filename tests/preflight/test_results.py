"""The order of findings."""

from __future__ import annotations

from dataclasses import replace

from rankwise.preflight.catalogue import judge_all
from rankwise.preflight.results import sorted_findings
from tests.preflight.checks.judging import told
from tests.preflight.facts import facts_of, job_of


def test_causes_come_before_their_consequences() -> None:
    job = job_of(3)
    facts_of(job, 1, "address").update(addresses=[], error="Name or service not known")
    facts_of(job, 2, "cpu").update(busy=0.9)
    found = sorted_findings(judge_all(replace(job, hosts=job.hosts[:2] + job.hosts[2:], meeting={"waited_s": 5.0})))

    assert [finding.code for finding in found] == ["RW106", "RW612"]
    missing = sorted_findings(
        judge_all(replace(told(b={"nnodes": 4})(job), hosts=told(b={"nnodes": 4})(job).hosts[:2], meeting={"waited_s": 5.0}))
    )
    assert [finding.code for finding in missing] == ["RW106", "RW112", "RW101"]
