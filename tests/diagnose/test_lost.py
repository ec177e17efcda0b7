"""Nodes whose watcher stopped answering: when that is proven to have ended the job, and what comes before it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rankwise.causes import load_cause
from rankwise.diagnose import diagnose
from rankwise.evidence.records import JobEvidence, RankEvidence
from tests.diagnose.jobs import busy, echo, ended, finished, in_init, job, raised, rank, waiting


def lost(*here: RankEvidence, silent_s: float = 25.0, **facts: Any) -> JobEvidence:
    """A job whose ranks 2 and 3 were on a node that is out of sight."""
    gone = [ended(rank(r, host="node-b"), "vanished", ago_s=silent_s) for r in (2, 3)]
    return job(*here, *gone, **{"lost_hosts": ("node-b",), **facts})


@pytest.mark.parametrize(
    ("silent_s", "details", "proven"),
    [
        (10, {"exit_code": 1}, True),  # the job is over
        (10, {}, False),  # a machine may be frozen for a while
        (20, {}, True),  # but not for ever
    ],
)
def test_a_lost_node_is_proven_when_the_others_cannot_go_on(silent_s: float, details: dict[str, Any], proven: bool) -> None:
    (root, *_) = diagnose(lost(waiting(0), waiting(1), silent_s=silent_s, **details))

    assert (root.code, root.certain) == ("RW412", proven)
    assert root.summary == f"node node-b (ranks 2, 3) is gone: its watcher stopped answering {silent_s} s ago"
    assert [(place.rank, place.host) for place in root.culprits] == [(2, "node-b"), (3, "node-b")]
    assert [wait.rank for wait in root.waiting] == [0, 1]
    assert root.next[:-1] == load_cause("RW412").next and root.name == load_cause("RW412").name


def test_a_rank_that_lost_its_connection_proves_it_at_once() -> None:
    root = diagnose(lost(echo(waiting(0)), waiting(1), silent_s=10))[0]

    assert (root.code, root.certain, root.deadlock) == ("RW412", True, True)


def test_ranks_that_wait_to_be_joined_cannot_go_on_either() -> None:
    assert diagnose(lost(in_init(0), in_init(1)))[0].code == "RW412"


@pytest.mark.parametrize(
    "evidence",
    [
        lost(waiting(0), waiting(1), exit_code=0),
        lost(waiting(0), busy(1)),
        lost(finished(0), finished(1)),
        job(waiting(0), ended(rank(1, host="node-b"), "vanished")),
    ],
    ids=["all was well", "the others go on", "the others are done", "no node is lost"],
)
def test_what_is_no_loss_of_a_node(evidence: JobEvidence) -> None:
    assert "RW412" not in {finding.code for finding in diagnose(evidence)}


def test_ranks_that_wait_since_a_moment_may_go_on() -> None:
    just = [replace(waiting(r), calls=(replace(waiting(r).calls[-1], started_ns=job().now_ns - 10**9),)) for r in range(2)]
    just = [replace(one, last_progress_ns=job().now_ns - 10**9, collectives=rank(0).collectives) for one in just]

    assert "RW412" not in {finding.code for finding in diagnose(lost(*just))}


def test_a_proven_cause_elsewhere_comes_first_and_the_lost_node_second() -> None:
    found = diagnose(lost(raised(rank(0)), exit_code=1))

    assert [finding.code for finding in found[:2]] == ["RW401", "RW412"]


def test_a_node_whose_ranks_nobody_ever_saw_is_named_by_the_ranks_that_are_missing() -> None:
    (root, *_) = diagnose(job(waiting(0), waiting(1), world_size=4, lost_hosts=("node-b",), exit_code=1))

    assert "node node-b (ranks 2, 3) is gone" in root.summary and [place.host for place in root.culprits] == ["node-b"]


def test_ranks_there_that_had_said_how_they_ended_are_not_counted_as_gone() -> None:
    there = [finished(1, host="node-b"), ended(rank(2, host="node-b"), "vanished"), ended(rank(3, host="node-c"), "vanished")]

    assert "(rank 2)" in diagnose(job(waiting(0), *there, lost_hosts=("node-b",), exit_code=1))[0].summary


def test_several_nodes_are_told_together() -> None:
    there = [ended(rank(r, host=f"node-{'bc'[r - 2]}"), "vanished") for r in (2, 3)]
    (root, *_) = diagnose(job(waiting(0), waiting(1), *there, lost_hosts=("node-b", "node-c"), exit_code=1))

    assert "nodes node-b, node-c (ranks 2, 3) are gone: their watchers stopped answering" in root.summary
