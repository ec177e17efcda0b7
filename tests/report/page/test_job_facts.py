"""The facts about a job: what is listed, what is left out, and where a step's time goes."""

from __future__ import annotations

from typing import Any

import pytest

from rankwise.evidence.audit import Audit, Times
from rankwise.evidence.records import JobEvidence, RankEvidence
from rankwise.report.page.job_facts import blind_section, facts_section, output_section, step_times_section
from rankwise.report.page.reported_job import ReportedJob


def reported(*ranks: RankEvidence, culprits: frozenset[int] = frozenset(), **facts: Any) -> ReportedJob:
    facts = {"command": ("python", "my train.py"), "started_ns": 0, "now_ns": 10, "world_size": 4, "stall_after_s": 10.0, **facts}
    return ReportedJob(JobEvidence(ranks={e.rank: e for e in ranks}, **facts), (), culprits)


def test_the_command_can_be_pasted_and_hosts_are_in_the_order_of_their_numbers() -> None:
    page = facts_section(reported(*[RankEvidence(n, host=f"node-{n}") for n in (10, 2, 1)]))

    assert "python &#x27;my train.py&#x27;" in page and "node-1, node-2, node-10" in page


def test_many_hosts_are_counted() -> None:
    assert "node-7 and 1 more" in facts_section(reported(*[RankEvidence(n, host=f"node-{n}") for n in range(9)]))
    assert "more" not in facts_section(reported(*[RankEvidence(n, host=f"node-{n}") for n in range(8)]))


@pytest.mark.parametrize(("started_ns", "shown"), [(1_790_000_000 * 10**9, "2026-09-21"), (5, ""), (9 * 10**18, "")])
def test_a_time_that_is_no_calendars_is_left_out(started_ns: int, shown: str) -> None:
    page = facts_section(reported(started_ns=started_ns))

    assert ("<dt>started</dt>" in page) == bool(shown) and shown in page


def test_restarts_are_told_where_there_were_any() -> None:
    assert "restarts" not in facts_section(reported()) and "<dt>restarts</dt><dd>2</dd>" in facts_section(reported(restarts=2))


def test_what_could_not_be_seen_is_told_once_for_all_its_ranks_and_lost_hosts_first() -> None:
    blind = [RankEvidence(n, blind=("no ptrace",)) for n in range(3)]
    page = blind_section(reported(*blind, blind=("no kernel log",), lost_hosts=("node-b",)))

    assert page is not None and page.count("<li>") == 3
    assert page.index("hosts that stopped answering: node-b") < page.index("no kernel log") < page.index("ranks 0-2: no ptrace")
    assert blind_section(reported(RankEvidence(0))) is None


@pytest.mark.parametrize(("number", "more"), [(30, False), (31, True)])
def test_of_many_blind_spots_the_rest_are_counted(number: int, more: bool) -> None:
    assert ("and 1 more" in str(blind_section(reported(blind=tuple(map(str, range(number))))))) == more


def test_the_last_output_of_culprits_is_shown_and_of_no_others() -> None:
    tails = {"rank-0.log": "fine", "rank-1.log": "<oops>", "rank-2.log": "  "}
    page = output_section(reported(culprits=frozenset({1, 2}), log_tails=tails))

    assert page is not None and page.count("<figure") == 1 and "&lt;oops&gt;" in page
    assert output_section(reported(culprits=frozenset({2}), log_tails=tails)) is None


def timed(number: int, steps: int = 10) -> RankEvidence:
    per_step = Times(steps, 100.0 * steps, 1.0 * steps, 30.0 * steps, 20.0 * steps, 25.0 * steps, 5.0 * steps, 4.0 * steps, 2.0 * steps)
    return RankEvidence(number, audit=Audit(times=(per_step,)))


def test_where_a_steps_time_goes_is_told_for_each_rank() -> None:
    page = str(step_times_section(reported(timed(0), timed(1, steps=9))))

    assert page.count("<tr>") == 2, "the second rank has made too few steps"
    shown = ["10", "100.0 ms", "30.0 ms", "20.0 ms", "25.0 ms", "5.0 ms", "4.0 ms", "2.0 ms", "14.0 ms", "1.0 %"]
    assert "".join(f"<td>{cell}</td>" for cell in shown) in page
    assert step_times_section(reported(timed(0, steps=9))) is None
