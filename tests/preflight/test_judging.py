"""What all checks have in common: healthy hosts pass, rubbish breaks nothing, and who cannot be told apart is not blamed."""

from __future__ import annotations

from typing import Any

import pytest

from rankwise.preflight.all_checks import all_checks, judge_all
from tests.preflight.checks.judging import links, result_of
from tests.preflight.facts import GOOD_LINK, facts_of, job_of


@pytest.mark.parametrize("num_hosts", [1, 2, 4])
def test_healthy_hosts_pass(num_hosts: int) -> None:
    results = judge_all(job_of(num_hosts))

    assert {result.check for result in results} == {check.name for check in all_checks()}
    assert not [finding.summary for result in results for finding in result.findings]
    assert {result.status for result in results} <= ({"pass"} if num_hosts > 1 else {"pass", "not possible"})


def test_with_two_hosts_nobody_is_called_odd_alone() -> None:
    job = job_of(2)
    facts_of(job, 1, "versions").update(torch="2.12.0")

    assert result_of(job, "versions").odd == ["node-a", "node-b"]


def test_a_host_that_could_not_look_is_not_called_a_pass() -> None:
    job = job_of(3)
    job.hosts[1].facts["memory"].clear()  # type: ignore[attr-defined]
    job.hosts[1].facts["memory"]["blind"] = "OSError: no"  # type: ignore[index]
    result = result_of(job, "memory")

    assert (result.status, result.why) == ("not possible", "OSError: no")
    assert set(result.values) == {"node-a", "node-c"}


@pytest.mark.parametrize("rubbish", [{}, {"left": None}, {"left": "much", "ranks": []}], ids=str)
def test_facts_that_cannot_be_read_break_nothing(rubbish: dict[str, Any]) -> None:
    job = job_of(2)
    for check in job.hosts[1].facts:
        job.hosts[1].facts[check].clear()
        job.hosts[1].facts[check].update(rubbish)

    assert all(result.status in ("pass", "warn", "fail", "not possible") for result in judge_all(job))


def test_two_hosts_cannot_tell_a_host_from_a_link() -> None:
    job = links("ab", lost_out=0.3)(job_of(2))
    result = next(result for result in judge_all(job) if result.check == "link-loss")

    assert "the link node-a – node-b" in result.findings[0].summary
    assert result.findings[0].why == ""


def test_a_good_link_is_described_by_all_its_measures() -> None:
    values = {r.check: r.values for r in judge_all(job_of(2)) if r.group == "links"}

    assert values["link-latency"] == {"node-a – node-b": "0.2 ms"}
    assert values["link-bandwidth"] == {"node-a – node-b": "8.8 Gbit/s there, 9.6 Gbit/s back"}
    assert GOOD_LINK["largest"] == 1472 and values["link-large-packets"] == {"node-a – node-b": "1500 of 1500 bytes"}
