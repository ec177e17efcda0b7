"""Merged stacks: who is where, the largest group first."""

from __future__ import annotations

import re

from rankwise.evidence.records import Ended, Frame, JobEvidence, Raised, RankEvidence, Stack, Thread
from rankwise.findings import Finding, Place
from rankwise.report.html import report_html
from rankwise.report.page.merged_stacks import merge_stacks, stack_section
from rankwise.report.page.rank_text import rank_states
from rankwise.report.page.reported_job import ReportedJob, main_stack, reported_job
from rankwise.report.verdict import verdict_dict

TORCH = "/venv/lib/python3.11/site-packages/torch/_tensor.py"


def at(line: int, *inner: Frame) -> Stack:
    return (*inner, Frame("/home/ada/train.py", line, "step"), Frame("/home/ada/train.py", 99, "<module>"))


def reported_of(stacks: dict[int, Stack], culprit: int | None = None) -> ReportedJob:
    ranks = {rank: RankEvidence(rank, threads=(Thread("helper", ()), Thread("MainThread", stack, True))) for rank, stack in stacks.items()}
    found = Finding("RW201", "skipped-collective", "error", True, "what", culprits=() if culprit is None else (Place(culprit),))
    return reported_job(JobEvidence((), 0, 1, len(ranks), 10.0, ranks), [found])


def test_ranks_at_the_same_line_of_the_users_code_are_one_group_whatever_torch_does_below() -> None:
    inside = (Frame(TORCH, 1, "backward"), Frame(TORCH, 2, "other"))
    reported = reported_of({0: at(5, inside[0]), 1: at(5, inside[1]), 2: at(5), 3: at(7)}, culprit=3)

    groups = merge_stacks(reported)

    assert [(group.ranks, group.culprits, group.is_outlier) for group in groups] == [((0, 1, 2), (), False), ((3,), (3,), True)]


def test_a_culprit_among_others_does_not_make_them_guilty() -> None:
    reported = reported_of({0: at(5), 1: at(5)}, culprit=1)

    section = stack_section(reported, rank_states(reported))

    assert "<em>with the culprit, rank 1</em>" in section and 'class="culprit"' not in section


def test_equal_halves_have_no_outlier() -> None:
    assert [group.is_outlier for group in merge_stacks(reported_of({0: at(1), 1: at(2)}))] == [False, False]


def test_a_culprit_is_shown_even_when_there_are_many_groups() -> None:
    groups = merge_stacks(reported_of({rank: at(rank + 1) for rank in range(40)}, culprit=39))

    assert any(group.culprits for group in groups[:12])
    assert sorted(rank for group in groups for rank in group.ranks) == list(range(40))


def test_a_rank_that_raised_is_where_it_raised() -> None:
    raised = Raised("KeyError", "'x'", at(3), 1, text="Traceback")
    job = JobEvidence((), 0, 1, 1, 10.0, {0: RankEvidence(0, raised=(raised,), alive=False)})
    reported = reported_job(job, [])

    section = stack_section(reported, rank_states(reported))

    assert "train.py:3 step()" in section and "KeyError" in section and "traceback of rank 0" in section


def test_what_was_seen_last_of_a_rank_is_where_it_was() -> None:
    """A stack that was read while the script was being imported does not stand beside an exception that came much later."""
    importing = (Thread("MainThread", at(1), is_main=True),)
    raised = Raised("KeyError", "'x'", at(30), time_ns=900)
    ended = RankEvidence(0, threads=importing, threads_ns=100, raised=(raised,), alive=False)
    left = RankEvidence(1, threads=importing, threads_ns=100, ended=Ended("os_exit", 900, 1, stack=at(40)), alive=False)
    killed = RankEvidence(2, threads=importing, threads_ns=100, ended=Ended("signal", 900, signal=9), alive=False)
    caught = RankEvidence(3, threads=importing, threads_ns=950, raised=(raised,))

    assert [main_stack(rank)[0].line for rank in (ended, left, killed, caught)] == [30, 40, 1, 1]


def test_an_exception_keeps_its_lines() -> None:
    raised = Raised("RuntimeError", "Error(s) in loading state_dict:\n\tMissing key(s): w", at(3), 1)
    reported = reported_job(JobEvidence((), 0, 1, 1, 10.0, {0: RankEvidence(0, raised=(raised,), alive=False)}), [])
    page = report_html(verdict_dict("crashed", 1, 1, 1.0, None, []), reported.job)

    assert "state_dict:\n\tMissing key(s): w</p>" in stack_section(reported, rank_states(reported))
    (style,) = re.findall(r"\.raised \{([^}]*)\}", page)
    assert "white-space: pre-wrap" in style


def test_frames_read_outermost_first_with_the_library_folded() -> None:
    reported = reported_of({0: at(5, Frame(TORCH, 1, "inner"), Frame(TORCH, 2, "outer"))})

    section = stack_section(reported, rank_states(reported))

    assert section.index("train.py:99") < section.index("train.py:5") < section.index("2 frames inside torch, down to inner()")


def test_endless_recursion_is_cut() -> None:
    stack = tuple(Frame("/home/ada/train.py", 5, "again") for _ in range(1000))
    reported = reported_of({0: stack})

    section = stack_section(reported, rank_states(reported))

    assert "940 outer frames left out" in section and section.count("again()") == 60
