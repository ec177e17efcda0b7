"""Notes on jobs that are not broken: they are few, never alarming, and never stand before a root cause."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankwise.diagnose import diagnose
from rankwise.evidence.audit import Audit, Times
from rankwise.findings import Finding
from tests.diagnose.jobs import (
    NOW_NS,
    SECOND,
    before_init,
    busy,
    elsewhere,
    expect,
    finished,
    gradients,
    job,
    log_of,
    raised,
    rank,
    waiting,
)


def notes(*ranks, **facts) -> dict[str, Finding]:
    found = {finding.code: finding for finding in diagnose(job(*ranks, **facts))}
    assert all(finding.severity == "info" and not finding.deadlock for finding in found.values()), found
    return found


def with_lateness(number: int, late_s: float, *, slots: int = 40, **facts):
    """A rank that enters each collective this long after the others, one collective a second."""
    evidence = rank(number, gradients(slots), **facts)
    ended_ns = NOW_NS - 10 * SECOND + int(late_s * SECOND)
    return replace(evidence, collectives=log_of(gradients(slots), ended_ns=ended_ns))


# -- RW501: the first step ----------------------------------------------------------------------------------------------------


def test_rw501_the_first_step_takes_long() -> None:
    found = notes(*[busy(r, "train.py:11 train", after=[], counts={"forward": 1}) for r in range(4)])

    expect(found["RW501"], "RW501", [], "first step", "1 min 38 s", certain=False, deadlock=False)


@pytest.mark.parametrize(
    "ranks",
    [
        [busy(r, after=gradients(50), counts={"forward": 50, "backward": 50}) for r in range(4)],
        [busy(r) for r in range(4)],
        [busy(0, after=[], counts={"forward": 1}), before_init(1)],
        [finished(r, []) for r in range(4)],
    ],
    ids=["after many steps", "after many collectives without DDP", "somebody has not joined", "it is over"],
)
def test_rw501_only_while_it_is_the_first_step(ranks) -> None:
    assert "RW501" not in {finding.code for finding in diagnose(job(*ranks))}


# -- RW503: stragglers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slow", [0, 1, 3])
def test_rw503_one_rank_arrives_last_again_and_again(slow: int) -> None:
    found = notes(*[with_lateness(r, 0.4 if r == slow else 0.002 * r) for r in range(4)])

    expect(found["RW503"], "RW503", [slow], f"rank {slow}", "last in 39 of 39", deadlock=False)


@pytest.mark.parametrize(
    "ranks",
    [
        [with_lateness(r, 0.01 * r) for r in range(4)],
        [with_lateness(r, 0.4 if r == 2 else 0, slots=6) for r in range(4)],
        [with_lateness(r, 0.4 if r == 2 else 0, host=f"node-{r}") for r in range(4)],
        [with_lateness(0, 0.0)],
        [with_lateness(r, 0.4) for r in range(4)],
    ],
    ids=["a few milliseconds", "too few collectives", "clocks of several hosts", "alone", "all alike"],
)
def test_rw503_not_without_reason(ranks) -> None:
    assert "RW503" not in notes(*ranks)


@pytest.mark.parametrize(("backward_ms", "is_told"), [((300, 300), True), ((360, 260), False)])
def test_rw503_a_straggler_is_slow_in_its_backward_only_if_that_is_as_long_as_the_others(backward_ms, is_told: bool) -> None:
    """The others wait for it in theirs."""
    ranks = [with_lateness(r, 0.3 * r) for r in range(2)]
    spent = [Audit(times=(Times(40, 40 * 500, 0, 0, 0, 40 * backward, 0, 0, 0),)) for backward in backward_ms]

    found = notes(*[replace(one, audit=audit) for one, audit in zip(ranks, spent, strict=True)])

    assert ("in the backward" in found["RW503"].why) is is_told


def test_rw503_taking_turns_is_no_straggling() -> None:
    ranks = []
    for number in range(4):
        log = log_of(gradients(40))
        for i in range(40):
            log.created_ns[i] += int(0.4 * SECOND) if i % 4 == number else 0
        ranks.append(replace(rank(number, gradients(40)), collectives=log))

    assert "RW503" not in notes(*ranks)


def test_rw503_a_rank_that_was_held_up_once_stays_behind_where_calls_return_at_once() -> None:
    ranks = []
    for number in range(2):
        log = log_of(gradients(40))
        for i in range(40):
            log.created_ns[i] = log.created_ns[0] + i * SECOND // 1000 + (24 * SECOND if number == 0 else 0)
        ranks.append(replace(rank(number, gradients(40)), collectives=log))

    assert "RW503" not in notes(*ranks)


# -- RW504, RW505, RW506 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("restarts", "words"), [(1, "1 time"), (3, "3 times")])
def test_rw504_the_job_was_restarted(restarts: int, words: str) -> None:
    found = notes(*[busy(r) for r in range(2)], restarts=restarts)

    expect(found["RW504"], "RW504", [], "restarted", words, deadlock=False)


def test_rw505_what_could_not_be_seen() -> None:
    found = notes(busy(0, blind=("ptrace was refused",)), busy(1), blind=("the kernel log could not be read",))

    expect(found["RW505"], "RW505", [], "kernel log", "rank 0: ptrace", deadlock=False)


def test_rw505_many_blind_spots_are_counted() -> None:
    found = notes(*[busy(r, blind=("ptrace was refused",)) for r in range(8)])

    assert "and 5 more" in found["RW505"].why


def test_rw505_a_node_that_does_not_answer_any_more() -> None:
    found = notes(*[busy(r) for r in range(2)], lost_hosts=("node-b",))

    assert "node-b" in found["RW505"].summary


@pytest.mark.parametrize(("value", "is_told"), [("DETAIL", True), ("detail", True), ("INFO", False), ("", False)])
def test_rw506_only_detail_is_worth_a_note(value: str, is_told: bool) -> None:
    found = notes(busy(0), busy(1, env={"TORCH_DISTRIBUTED_DEBUG": value}))

    assert ("RW506" in found) == is_told
    if is_told:
        expect(found["RW506"], "RW506", [], "DETAIL", "rank 1", deadlock=False)


# -- their place --------------------------------------------------------------------------------------------------------------


def test_notes_come_after_the_root_cause() -> None:
    evidence = job(waiting(0), raised(elsewhere(1)), waiting(2), restarts=2, blind=("stacks",))

    assert [finding.code for finding in diagnose(evidence)] == ["RW401", "RW504", "RW505"]


def test_notes_about_pace_are_kept_for_healthy_jobs() -> None:
    slow = [with_lateness(r, 0.4 if r == 1 else 0) for r in range(3)]
    evidence = job(*slow, raised(with_lateness(3, 0)), exit_code=1)

    assert [finding.code for finding in diagnose(evidence)] == ["RW401"]


def test_a_healthy_job_needs_no_notes() -> None:
    assert diagnose(job(*[busy(r, after=gradients(50), counts={"forward": 50, "backward": 50}) for r in range(4)])) == []
