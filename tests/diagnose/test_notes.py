"""Notes on jobs that are not broken: they are few, never alarming, and never stand before a root cause."""

from __future__ import annotations

import pytest

from rankwise.diagnose import diagnose
from rankwise.findings import Finding
from tests.diagnose.jobs import before_init, busy, elsewhere, expect, finished, gradients, job, raised, waiting


def notes(*ranks, **facts) -> dict[str, Finding]:
    found = {finding.code: finding for finding in diagnose(job(*ranks, **facts))}
    assert all(finding.severity == "info" and not finding.deadlock for finding in found.values()), found
    return found


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


def test_a_healthy_job_needs_no_notes() -> None:
    assert diagnose(job(*[busy(r, after=gradients(50), counts={"forward": 50, "backward": 50}) for r in range(4)])) == []
