"""What every part of the page draws from: who is a culprit, how a file is called, where a rank is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankwise.evidence.records import Call, Ended, Frame, JobEvidence, Raised, RankEvidence, Thread
from rankwise.findings import Finding, Place, Wait
from rankwise.report.page.reported_job import main_stack, raised_last, reported_job, user_stack

USER = (Frame("/home/ada/net/train.py", 9, "main"),)
LIBRARY = (Frame("/home/ada/venv/lib/python3.11/site-packages/torch/nn.py", 3, "forward"),)


def job_of(sources: dict[str, str] | None = None, *ranks: RankEvidence) -> JobEvidence:
    return JobEvidence((), 0, 10, len(ranks), 10.0, {e.rank: e for e in ranks}, sources=sources or {})


def finding(*culprits: int, waiting: tuple[int, ...] = (), op: str = "all_reduce") -> Finding:
    return Finding("RW201", "x", "error", True, "what", culprits=tuple(map(Place, culprits)), waiting=tuple(Wait(r, op) for r in waiting))


def test_only_the_root_cause_names_culprits_and_its_word_on_who_waits_counts_first() -> None:
    found = reported_job(job_of(), [finding(1, waiting=(0, 1)), finding(2, waiting=(0, 3), op="barrier")])

    assert found.culprits == {1}
    assert {rank: wait.op for rank, wait in found.waiting.items()} == {0: "all_reduce", 3: "barrier"}


@pytest.mark.parametrize(
    ("file", "short"),
    [
        ("/home/ada/net/train.py", "train.py"),
        ("/home/ada/net/data/crops.py", "data/crops.py"),
        ("/home/ada/other/tool.py", "/home/ada/other/tool.py"),
        ("/home/ada/venv/lib/python3.11/site-packages/torch/nn.py", "torch/nn.py"),
        ("/usr/lib/python3.11/queue.py", "queue.py"),
    ],
)
def test_files_are_called_as_one_would_say_them(file: str, short: str) -> None:
    found = reported_job(job_of({"/home/ada/net/train.py": "", "/home/ada/net/data/crops.py": ""}), [])

    assert found.project == "/home/ada/net/" and found.short(file) == short


def test_the_project_is_known_from_stacks_where_no_source_was_kept() -> None:
    ranks = [RankEvidence(0, threads=(Thread("MainThread", USER, is_main=True),)), RankEvidence(1, threads=(Thread("M", LIBRARY),))]

    assert reported_job(job_of(None, *ranks), []).project == "/home/ada/net/"
    assert reported_job(job_of({"/a/x.py": "", "/b/y.py": ""}), []).project == ""


def test_a_source_is_found_by_its_end_where_that_is_unique() -> None:
    found = reported_job(job_of({"/net/a/train.py": "one", "/net/b/train.py": "two\n  three\n", "/net/data.py": "four"}), [])

    assert found.source_of("/net/a/train.py") == "one" and found.source_of("./data.py") == "four" and found.source_of("b/train.py")
    assert found.source_of("train.py") is None and found.source_of("ata.py") is None
    assert [found.line_of(Frame("b/train.py", n, "")) for n in (0, 1, 2, 3)] == ["", "two", "three", ""]


def test_a_stack_without_lines_of_the_user_is_shown_whole() -> None:
    assert user_stack(LIBRARY + USER) == USER and user_stack(LIBRARY) == LIBRARY


RAISED = Raised("ValueError", "bad", USER, time_ns=50)
AT_WORK = (Thread("Thread-1", LIBRARY), Thread("MainThread", USER[:0] + LIBRARY, is_main=True))


@pytest.mark.parametrize(
    ("changes", "is_there"),
    [
        ({"alive": False}, True),
        ({"alive": False, "threads": AT_WORK, "threads_ns": 60}, True),
        ({}, True),
        ({"threads": AT_WORK, "threads_ns": 40}, True),
        ({"threads": AT_WORK, "threads_ns": 60}, False),
        ({"raised": ()}, False),
    ],
    ids=["gone", "gone after a look", "never looked at", "looked at before", "it went on", "nothing raised"],
)
def test_a_rank_stands_at_its_exception_unless_it_was_seen_to_go_on(changes: dict[str, object], is_there: bool) -> None:
    assert (raised_last(replace(RankEvidence(0, raised=(RAISED,)), **changes)) is not None) == is_there


def test_a_rank_is_where_it_raised_else_where_it_ended_else_where_it_was_seen_else_in_its_open_call() -> None:
    call = (Call("send", 1, 2, LIBRARY), Call("recv", 3, 0, USER), Call("recv", 3, 4, LIBRARY))
    seen = RankEvidence(0, threads=(Thread("T", USER), Thread("MainThread", LIBRARY, is_main=True)), calls=call)
    gone = replace(seen, alive=False, ended=Ended("sys_exit", 60, stack=USER))

    assert main_stack(seen) == LIBRARY and main_stack(gone) == USER
    assert main_stack(replace(gone, raised=(replace(RAISED, stack=LIBRARY),))) == LIBRARY
    assert main_stack(RankEvidence(0, calls=call)) == USER and main_stack(RankEvidence(0)) == ()
