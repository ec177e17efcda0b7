"""Who waits for whom, and who can never go on."""

from __future__ import annotations

import pytest

from rankwise.diagnose.rank_state import rank_states
from rankwise.diagnose.waiting import doomed_ranks, members_of, needed_by
from rankwise.evidence.records import JobEvidence
from tests.diagnose.jobs import (
    FIVE,
    before_init,
    busy,
    did,
    finished,
    in_call,
    in_init,
    job,
    new_group,
    rank,
    returned,
    waiting,
)


def needs(evidence: JobEvidence, number: int) -> set[int]:
    return needed_by(evidence, rank_states(evidence), number)


def doomed(*ranks) -> list[int]:
    evidence = job(*ranks)
    return sorted(doomed_ranks(evidence, rank_states(evidence)))


PAIR = new_group(1, 3, name="7")


def test_everybody_is_a_member_of_the_default_group_also_who_was_not_seen() -> None:
    assert members_of(job(rank(0), rank(2), world_size=4), "0") == [0, 1, 2, 3]
    assert members_of(job(rank(0), rank(2), world_size=None), "0") == [0, 2]


def test_members_of_a_group_are_those_it_was_made_of_or_those_who_use_it() -> None:
    assert members_of(job(rank(0, groups=(PAIR,)), rank(1), rank(3)), "7") == [1, 3]
    assert members_of(job(rank(0), rank(1, did(group="7")), rank(3, did(group="7"))), "7") == [1, 3]
    assert members_of(job(rank(0)), "nobody's") == []


def test_a_collective_needs_the_members_that_have_not_arrived() -> None:
    evidence = job(waiting(0), busy(1), waiting(2), finished(3), world_size=5)

    assert needs(evidence, 0) == {1, 3, 4}


def test_who_has_been_there_and_gone_on_is_not_needed() -> None:
    evidence = job(waiting(0), busy(1, after=did(times=9)), returned(busy(2, after=[*FIVE, *did(times=4, done=False)])), busy(3))

    assert needs(evidence, 0) == {3}


def test_who_did_something_else_in_that_slot_is_needed() -> None:
    evidence = job(waiting(0), busy(1, after=[*FIVE, *did("barrier")]), waiting(2))

    assert needs(evidence, 0) == {1}


@pytest.mark.parametrize("op", ["send", "recv", "isend"])
def test_a_transfer_needs_its_peer(op: str) -> None:
    assert needs(job(in_call(0, op, peer=2), busy(1), busy(2)), 0) == {2}
    assert needs(job(in_call(0, op, peer=None), busy(1)), 0) == set()


def test_a_transfer_that_has_found_its_peer_needs_nobody() -> None:
    evidence = job(in_call(0, "send", peer=1), in_call(1, "recv", peer=0))

    assert doomed(*evidence.ranks.values()) == []


def test_new_group_needs_those_who_have_made_fewer() -> None:
    evidence = job(in_call(0, "new_group", groups=(PAIR,)), busy(1), busy(2, groups=(PAIR,)))

    assert needs(evidence, 0) == {1}


@pytest.mark.parametrize(
    ("ranks", "lost"),
    [
        ([waiting(0), busy(1), waiting(2)], []),
        ([waiting(0), finished(1), waiting(2)], [0, 2]),
        ([waiting(0), finished(1), busy(2)], [0]),
        ([waiting(0), waiting(1, "barrier"), waiting(2)], [0, 1, 2]),
        ([waiting(0), waiting(1), waiting(2)], []),
        ([in_call(0, "recv", peer=1), in_call(1, "recv", peer=2), in_call(2, "recv", peer=0)], [0, 1, 2]),
        ([in_call(0, "recv", peer=1), in_call(1, "recv", peer=2), busy(2)], []),
        ([in_call(0, "recv", peer=1), in_call(1, "recv", peer=2), finished(2)], [0, 1]),
        ([in_call(0, "recv", peer=1), in_call(1, "recv", peer=0), busy(2), waiting(3)], [0, 1, 3]),
        ([in_init(0), in_init(1), before_init(2)], []),
    ],
)
def test_who_can_never_go_on(ranks, lost: list[int]) -> None:
    assert doomed(*ranks) == lost
