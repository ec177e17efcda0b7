"""What tests of single checks share: three hosts of which one, or a link, is changed, and what must be said of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rankwise.preflight.all_checks import Result, judge_all
from rankwise.preflight.facts import CheckedJob
from tests.preflight.facts import job_of

Change = Callable[[CheckedJob], Any]  # in place, or a changed job is returned
# what is wrong; the check's status, the code, words of the summary, the letters of the hosts that are named
Fault = tuple[Change, str, str, str, str]


def assert_told(check: str, fault: Fault) -> Result:
    """The check says of three hosts with this fault what it must."""
    change, status, code, words, letters = fault
    job = job_of(3)
    changed = change(job)
    result = result_of(changed if isinstance(changed, CheckedJob) else job, check)

    assert result.status == status, result
    if code:
        finding = result.findings[0]
        assert finding.code == code
        assert words in finding.summary
        assert {place.host for place in finding.culprits} == {f"node-{letter}" for letter in letters}
        assert finding.next, "every finding has a next step"
    return result


def assert_told_on_node_b(check: str, fault: tuple[Change, str, str, str]) -> None:
    """The same for a fault of one host, which is the odd one then."""
    result = assert_told(check, (*fault, "b"))

    if fault[2]:
        assert result.odd == ["node-b"]


def result_of(job: CheckedJob, check: str) -> Result:
    return next(result for result in judge_all(job) if result.check == check)


def told(**plans: Any) -> Callable[[CheckedJob], CheckedJob]:
    """What single hosts were told, by letter."""

    def change(job: CheckedJob) -> CheckedJob:
        return replace(job, hosts=tuple(replace(h, plan={**h.plan, **plans.get(h.name[-1], {})}) for h in job.hosts))

    return change


def links(*names: str, **facts: Any) -> Callable[[CheckedJob], CheckedJob]:
    """Links are `ab` for node-a to node-b; only those named get the facts."""

    def change(job: CheckedJob) -> CheckedJob:
        return replace(
            job, links=tuple(replace(k, facts=k.facts | (facts if k.source[-1] + k.target[-1] in names else {})) for k in job.links)
        )

    return change


def reach(*names: str, **how: Any) -> Callable[[CheckedJob], CheckedJob]:
    def change(job: CheckedJob) -> CheckedJob:
        new = {a: {b: how if a[-1] + b[-1] in names else facts for b, facts in row.items()} for a, row in job.reached.items()}
        return replace(job, reached=new)

    return change
