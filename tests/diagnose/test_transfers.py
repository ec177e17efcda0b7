"""Sends and receives counted on both sides: what is answered, and which one is not."""

from __future__ import annotations

import pytest

from rankwise.diagnose.transfers import has_answered, latest_transfer, num_transfers, unanswered_transfer
from rankwise.evidence.records import Call, RankEvidence
from tests.diagnose.jobs import job, rank


def transferring(number: int, *transfers: tuple[str, int] | tuple[str, int, str]) -> RankEvidence:
    """A rank that has begun these transfers one after the other: operation, peer, tag."""
    calls = [Call(op, 10 * i, 10 * i + 5, peer=peer, reduce_op=(tag or [""])[0]) for i, (op, peer, *tag) in enumerate(transfers)]
    return rank(number, calls=tuple(calls))


def test_transfers_are_counted_by_direction_peer_and_tag() -> None:
    one = transferring(0, ("send", 1), ("isend", 1), ("recv", 1), ("send", 2), ("send", 1, "7"), ("send", 1, "0"))

    assert num_transfers(one, "send", 1) == 3
    assert num_transfers(one, "send", 1, "7") == 1
    assert num_transfers(one, "recv", 1) == 1 and num_transfers(one, "recv", 2) == 0


@pytest.mark.parametrize(("ended_ns", "number"), [(9, 1), (0, 1), (2, 2)], ids=["inside it", "inside an open one", "after it"])
def test_the_irecv_that_a_recv_calls_is_the_same_transfer(ended_ns: int, number: int) -> None:
    one = rank(0, calls=(Call("recv", 1, ended_ns, peer=1), Call("irecv", 2, 3, peer=1)))

    assert num_transfers(one, "recv", 1) == number


@pytest.mark.parametrize(
    ("theirs", "is_answered"),
    [([("recv", 0), ("irecv", 0)], True), ([("recv", 0)], False), ([("send", 0)] * 2, False), ([("recv", 2)] * 2, False)],
    ids=["both", "one of two", "the same direction", "another peer"],
)
def test_a_send_is_answered_by_as_many_receives(theirs: list[tuple[str, int]], is_answered: bool) -> None:
    mine = transferring(0, ("send", 1), ("send", 1))

    assert has_answered(job(mine, transferring(1, *theirs)), 0, mine.calls[-1]) == is_answered


def test_a_receive_is_answered_by_sends() -> None:
    mine, theirs = transferring(0, ("recv", 1)), transferring(1, ("isend", 0))

    assert has_answered(job(mine, theirs), 0, mine.calls[0]) and has_answered(job(mine, theirs), 1, theirs.calls[0])


def test_a_peer_that_is_not_known_has_answered_nothing() -> None:
    mine = transferring(0, ("send", 1))

    assert not has_answered(job(mine), 0, mine.calls[0])
    assert not has_answered(job(mine), 0, Call("recv", 1, 0)) and not has_answered(job(mine), 0, None)


def test_of_transfers_just_begun_the_unanswered_one_is_found_and_receives_come_first() -> None:
    mine = transferring(0, ("isend", 1), ("irecv", 2), ("isend", 2))

    assert unanswered_transfer(job(mine, transferring(1), transferring(2)), 0) == mine.calls[1]
    assert unanswered_transfer(job(mine, transferring(1), transferring(2, ("isend", 0))), 0) == mine.calls[2]
    assert unanswered_transfer(job(mine, transferring(1, ("irecv", 0)), transferring(2, ("isend", 0), ("irecv", 0))), 0) is None


def test_transfers_before_another_operation_are_not_asked_about() -> None:
    assert unanswered_transfer(job(transferring(0, ("isend", 1), ("all_reduce", 1)), transferring(1)), 0) is None


def test_the_latest_transfer_to_a_peer_is_found_in_its_direction() -> None:
    one = transferring(0, ("send", 1), ("isend", 1), ("irecv", 1), ("send", 2))

    assert latest_transfer(one, "isend", 1) == one.calls[1]
    assert latest_transfer(one, "recv", 1) == one.calls[2]
    assert latest_transfer(one, "recv", 2) is None
