"""What other nodes told becomes one job, and what is left of a node that fell silent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rankwise.evidence.records import Ended, HostFacts, JobEvidence
from rankwise.launch.node_messages import pack_job
from rankwise.launch.peers import Peer, lost_job, merge_jobs
from tests.launch.evidence import a_job, a_rank


def a_peer(evidence: JobEvidence | None = None, **details: Any) -> Peer:
    packed = pack_job(evidence) if evidence else b""
    return Peer(2, "node-b", heard_ns=int(90e9), snapshot=packed, fetched=int(bool(evidence)), **details)


def test_a_status_that_makes_no_sense_changes_nothing() -> None:
    peer = Peer(2)
    peer.take_status("store", json.dumps({"beat": 1, "serial": 4, "host": "node-b", "ranks": {"2": 77}, "ask": 3}), 1.0, 1)
    for text in ("", "[]", '{"beat": "x"}', '{"beat": 2, "serial": 9, "ranks": [1]}', '{"beat": 3, "serial": 2, "host": "old"}'):
        peer.take_status("store", text, 2.0, 2)

    assert (peer.host, peer.ranks, peer.ask, peer.serial) == ("node-b", {2: 77}, 3, 4)


@pytest.mark.parametrize(
    ("status", "fetched", "expected"),
    [
        ({"answers": {"1": 3}}, 1, True),
        ({"answers": {"1": 2}}, 1, False),  # to an earlier question
        ({"answers": {"0": 3}}, 1, False),  # to another node
        ({"answers": {"1": 3}}, 0, False),  # the snapshot is not here yet
        ({"final": True}, 1, True),  # after its end nothing changes any more
        ({"final": False}, 1, False),
    ],
)
def test_a_question_is_answered_by_a_snapshot_made_after_it(status: dict[str, Any], fetched: int, expected: bool) -> None:
    peer = Peer(2, fetched=fetched)
    peer.take_status("store", json.dumps({"beat": 1, "serial": 1, "version": 1, **status}), 1.0, 1)

    assert peer.has_answered(1, 3) is expected


def test_a_beat_that_another_store_showed_before_is_no_life() -> None:
    peer = Peer(2)
    for second, (store, beat) in enumerate([("one", 9), ("two", 8), ("one", 9), ("two", 8), ("one", 9)]):
        peer.take_status(store, json.dumps({"beat": beat}), float(second), second)

    assert peer.heard_s == 1.0 and peer.num_polls == 3


def test_ranks_of_all_nodes_become_one_job() -> None:
    here = a_job(a_rank(0), world_size=None, sources={"a.py": "here"})
    there = a_job(a_rank(1, "node-b"), world_size=2, hosts=(HostFacts("node-b"),), sources={"a.py": "there", "b.py": "there"}, blind=("x",))
    whole = merge_jobs(here, [there])

    assert sorted(whole.ranks) == [0, 1] and whole.world_size == 2
    assert [host.name for host in whole.hosts] == ["node-a", "node-b"]
    assert whole.sources == {"a.py": "here", "b.py": "there"} and whole.blind == ("x",)


def test_a_rank_that_two_nodes_claim_is_a_duplicate_unless_it_moved() -> None:
    old = a_rank(0, alive=False, ended=Ended("finished", 50), started_ns=1)
    twin, later = a_rank(0, "node-b", started_ns=2), a_rank(0, "node-b", started_ns=60)

    assert [e.host for e in merge_jobs(a_job(a_rank(0)), [a_job(twin)]).duplicates] == ["node-a"]
    moved = merge_jobs(a_job(old), [a_job(later)])
    assert moved.ranks[0].host == "node-b" and not moved.duplicates


def test_what_is_left_of_a_lost_node_are_its_ranks_and_its_last_words() -> None:
    finished = a_rank(3, "node-b", alive=False, ended=Ended("finished", 5))
    left = lost_job(a_peer(a_job(a_rank(2, "node-b"), finished), ranks={2: 102, 4: 104}))

    assert sorted(left.ranks) == [2, 3, 4]
    assert left.ranks[2].ended == left.ranks[4].ended == Ended("vanished", int(90e9)) and not left.ranks[2].alive
    assert left.ranks[3].ended == Ended("finished", 5), "what it said itself stays"
    assert sorted(lost_job(a_peer(ranks={2: 102})).ranks) == [2]
