"""Every check has a page: its doc block, which names the causes it can find. And the order of findings."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from rankwise.causes import load_cause
from rankwise.preflight.all_checks import Check, all_checks, judge_all, sorted_findings
from tests.preflight.checks.judging import told
from tests.preflight.facts import facts_of, job_of


@pytest.mark.parametrize("check", all_checks(), ids=lambda check: check.name)
def test_a_check_has_a_page_that_names_its_causes(check: Check) -> None:
    assert check.page.count("\n\n") >= 2, "what it looks at, and when it fails or warns"
    for code in re.findall(r"RW\d{3}", check.page):
        load_cause(code)
    assert re.search(r"(Fails|Warns) with RW\d{3}", check.page)


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
