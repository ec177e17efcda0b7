"""What a rank's row says it is doing, for every way a rank can be."""

from __future__ import annotations

from typing import Any

import pytest

from rankwise.evidence.collective_log import CollectiveLog, Signature
from rankwise.evidence.records import Call, Ended, Frame, Init, JobEvidence, Raised, RankEvidence, Sample, Thread
from rankwise.findings import Finding, Place, Wait
from rankwise.report.page.rank_text import RankRow, rank_states
from rankwise.report.page.reported_job import reported_job

NOW_NS = 100_000_000_000


def state_of(**seen: Any) -> RankRow:
    job = JobEvidence((), 0, NOW_NS, 1, 10.0, {0: RankEvidence(0, **seen)})
    return rank_states(reported_job(job, []))[0]


def joined(**changes: Any) -> dict[str, Any]:
    return {"inits": (Init(0, 2, "gloo", "env://", "host", 1, 60.0, 1, 2),), "last_progress_ns": NOW_NS - 5_000_000_000, **changes}


def pending_log() -> CollectiveLog:
    log = CollectiveLog()
    log.add(1, Signature("0", "broadcast", (3,)), NOW_NS - 9_000_000_000, True)
    log.add(2, Signature("0", "all_reduce", (3,)), NOW_NS - 7_000_000_000, False, origin="backward")
    return log


RAISED = Raised("KeyError", "'x'", (), NOW_NS)


@pytest.mark.parametrize(
    ("seen", "state", "tone"),
    [
        (joined(ended=Ended("finished", NOW_NS)), "finished", "ended"),
        (joined(ended=Ended("exception", NOW_NS, 1), raised=(RAISED,)), "raised KeyError", "failed"),
        (joined(ended=Ended("sys_exit", NOW_NS, 3)), "exited with 3", "failed"),
        (joined(ended=Ended("os_exit", NOW_NS, 7)), "left by os._exit with 7", "failed"),
        (joined(ended=Ended("signal", NOW_NS, signal=9)), "killed by SIGKILL", "failed"),
        (joined(ended=Ended("signal", NOW_NS, signal=999)), "killed by signal 999", "failed"),
        (joined(ended=Ended("vanished", NOW_NS)), "vanished", "failed"),
        (joined(alive=False), "gone", "failed"),
        (joined(samples=(Sample(NOW_NS, "T"),)), "stopped by a signal", "stopped"),
        ({"inits": (Init(0, 2, "gloo", "env://", "host", 1, 60.0, NOW_NS - 1, 0),)}, "joining", "wait"),
        ({}, "before init", "busy"),
        (joined(collectives=pending_log(), samples=(Sample(NOW_NS, "S"),)), "waiting", "wait"),
        (joined(collectives=pending_log(), samples=(Sample(NOW_NS, "R"),)), "busy", "busy"),
        (joined(samples=(Sample(NOW_NS, "D"),)), "in the kernel", "busy"),
        (joined(samples=(Sample(NOW_NS, "S"),)), "blocked", "busy"),
        (joined(threads=(Thread("MainThread", (), is_main=True, is_active=True),)), "busy", "busy"),
    ],
)
def test_states(seen: dict[str, Any], state: str, tone: str) -> None:
    found = state_of(**seen)

    assert (found.state, found.tone) == (state, tone)


def test_a_pending_collective_is_shown_with_its_age_and_origin() -> None:
    state = state_of(**joined(collectives=pending_log()))

    assert (state.last, state.is_pending, state.since_s) == ("all_reduce #2 (DDP backward)", True, 7.0)


def test_a_rank_the_finding_says_is_waiting_is_waiting() -> None:
    job = JobEvidence((), 0, NOW_NS, 1, 10.0, {0: RankEvidence(0, calls=(Call("recv", 1, 0),), last_progress_ns=NOW_NS - 3_000_000_000)})
    finding = Finding("RW212", "unmatched-send", "error", True, "what", waiting=(Wait(0, "recv"),))

    (state,) = rank_states(reported_job(job, [finding]))

    assert (state.state, state.since_s, state.last) == ("waiting", 3.0, "recv")


@pytest.mark.parametrize(("line", "state"), [(7, "waiting"), (9, "blocked")])
def test_a_culprit_waits_only_where_it_called_what_is_pending(line: int, state: str) -> None:
    log = CollectiveLog()
    log.add(1, Signature("0", "all_reduce", (3,)), NOW_NS - 1, False, (Frame("/home/ada/train.py", 7, "step"),))
    thread = Thread("MainThread", (Frame("/home/ada/train.py", line, "step"),), is_main=True)
    rank = RankEvidence(0, collectives=log, threads=(thread,), **joined())
    finding = Finding("RW202", "different-collectives", "error", True, "what", culprits=(Place(0),))

    (found,) = rank_states(reported_job(JobEvidence((), 0, NOW_NS, 1, 10.0, {0: rank}), [finding]))

    assert found.state == state


def test_times_that_make_no_sense_are_left_out() -> None:
    assert state_of(**joined(last_progress_ns=NOW_NS * 2)).since_s is None
