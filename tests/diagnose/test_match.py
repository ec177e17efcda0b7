"""Collectives compared slot by slot: what is a conflict, which comes first, and what only looks like one."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from rankwise.diagnose.match import find_conflict, last_seq
from rankwise.evidence.collective_log import CollectiveLog
from tests.diagnose.jobs import (
    FIVE,
    Slot,
    did,
    gradients,
    job,
    log_of,
    rank,
)

AGREED = did(times=3)


def conflict_of(*slots: list[Slot], **facts):
    return find_conflict(job(*(rank(i, list(log), **facts) for i, log in enumerate(slots))))


def test_ranks_that_did_the_same_do_not_conflict() -> None:
    assert conflict_of(FIVE, FIVE, FIVE, FIVE) is None


@pytest.mark.parametrize(
    ("about", "odd"),
    [
        ("op", Slot("barrier", sizes=())),
        ("size", Slot(sizes=(9,))),
        ("dtype", Slot(dtype="int32")),
        ("reduce_op", Slot(reduce_op="MAX")),
    ],
)
@pytest.mark.parametrize("culprit", [0, 1, 3])
def test_finds_what_ranks_disagree_about(about: str, odd: Slot, culprit: int) -> None:
    usual = Slot(reduce_op="SUM")
    logs = [[*AGREED, odd if i == culprit else usual] for i in range(4)]

    conflict = conflict_of(*logs)

    assert (conflict.group, conflict.seq, conflict.about) == ("0", 4, about)
    assert sorted(conflict.entries) == [0, 1, 2, 3]
    assert list(conflict.by_value().values()) == [[i for i in range(4) if i != culprit], [culprit]]


@pytest.mark.parametrize("op", ["broadcast", "reduce", "gather", "scatter"])
def test_different_roots_are_a_conflict(op: str) -> None:
    conflict = conflict_of([*AGREED, Slot(op, peer=0)], [*AGREED, Slot(op, peer=0)], [*AGREED, Slot(op, peer=2)])

    assert (conflict.about, conflict.seq) == ("src", 4)
    assert list(conflict.by_value().values()) == [[0, 1], [2]]


def test_roots_of_the_first_rank_may_be_unknown() -> None:
    unknown, zero, one = Slot("broadcast"), Slot("broadcast", peer=0), Slot("broadcast", peer=1)

    conflict = conflict_of([*AGREED, unknown], [*AGREED, zero], [*AGREED, one])

    assert conflict is not None and conflict.about == "src"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Slot(sizes=(2, 4)), Slot(sizes=(8,))),  # the same number of elements
        (Slot("scatter", sizes=(3,)), Slot("scatter", sizes=(8,))),  # only the root has the whole
        (Slot("all_to_all_single", sizes=(3,)), Slot("all_to_all_single", sizes=(5,))),  # uneven splits are legal
        (Slot("reduce_scatter", sizes=(3,)), Slot("reduce_scatter", sizes=(5,))),
        (Slot("broadcast", peer=0), Slot("broadcast", peer=None)),  # not known is not different
        (Slot(reduce_op="SUM"), Slot(reduce_op="")),
        (Slot(dtype="float32"), Slot(dtype="")),
        (Slot("barrier", sizes=()), Slot("barrier", sizes=(1,))),
        (Slot("recv", peer=0), Slot("recv", peer=1)),
    ],
    ids=lambda slot: f"{slot.op}{slot.sizes}{slot.peer}{slot.reduce_op}{slot.dtype}",
)
def test_what_may_differ_is_no_conflict(one: Slot, other: Slot) -> None:
    assert conflict_of([*AGREED, one], [*AGREED, other]) is None


def test_the_earliest_conflict_is_the_one_that_counts() -> None:
    conflict = conflict_of([*AGREED, Slot("broadcast"), Slot("barrier")], [*AGREED, Slot("barrier"), Slot("broadcast")])

    assert conflict.seq == 4


def test_a_rank_that_is_behind_does_not_conflict() -> None:
    assert conflict_of([*FIVE, Slot("barrier")], FIVE, did(times=2)) is None


def test_groups_are_compared_apart() -> None:
    even = [Slot(group="even"), Slot("broadcast", group="even", sizes=(3,))]
    odd = [Slot("barrier", group="odd"), Slot(group="odd")]

    assert conflict_of([*FIVE, *even], [*FIVE, *odd], [*FIVE, *even], [*odd, *FIVE]) is None


def test_ranks_may_use_their_groups_in_another_order_and_still_be_compared_in_each() -> None:
    row, column = did(times=2, group="row"), did(times=3, group="column")

    conflict = conflict_of([*row, *column, Slot("barrier")], [*column, *row, Slot("barrier")], [*column, *row, Slot("broadcast")])

    assert (conflict.group, conflict.seq) == ("0", 1)
    assert {rank: entry.what.op for rank, entry in conflict.entries.items()} == {0: "barrier", 1: "barrier", 2: "broadcast"}


def test_numbers_that_are_far_apart_are_compared_in_a_moment() -> None:
    def with_numbers(number: int, *seqs: int):
        log = log_of([Slot("barrier" if number and i == 1 else "all_reduce") for i in range(len(seqs))])
        for i, seq in enumerate(seqs):
            log.seq[i] = seq
        return replace(rank(number), collectives=log)

    started = time.process_time()
    conflict = find_conflict(job(with_numbers(0, 1, 20_000_000), with_numbers(1, 1, 20_000_000, 20_000_001)))

    assert conflict.seq == 20_000_000
    assert time.process_time() - started < 1


def test_a_conflict_inside_one_group_leaves_the_others_out() -> None:
    conflict = conflict_of([*FIVE, Slot(group="even")], FIVE, [*FIVE, Slot("barrier", group="even")], FIVE)

    assert (conflict.group, sorted(conflict.entries)) == ("even", [0, 2])


def test_recorders_that_have_overflowed_are_compared_over_what_they_share() -> None:
    late = replace(rank(1), collectives=log_of([*did(times=2), Slot("barrier")], first_seq=4))

    conflict = find_conflict(job(rank(0, did(times=7)), late))

    assert (conflict.about, conflict.seq) == ("op", 6)


def test_recorders_that_share_nothing_do_not_conflict() -> None:
    far = replace(rank(1), collectives=log_of(did("barrier", times=3), first_seq=90))

    assert find_conflict(job(rank(0, did(times=3)), far)) is None


def test_without_recorders_the_calls_are_compared() -> None:
    conflict = conflict_of([*AGREED, Slot("barrier")], [*AGREED, Slot()], recorder=False)

    assert (conflict.about, conflict.seq) == ("op", 4)


def test_a_rank_without_a_recorder_is_compared_by_its_calls() -> None:
    conflict = find_conflict(job(rank(0, [*AGREED, Slot("barrier")]), rank(1, [*AGREED, Slot()], recorder=False)))

    assert conflict is not None and conflict.about == "op"


def test_batches_are_only_counted_and_do_not_make_a_ring_overflow() -> None:
    counts = {"next_batch": 400, "end_of_data": 2}
    dead = rank(1, [*AGREED, Slot()], recorder=False, counts=counts)

    assert find_conflict(job(rank(0, [*AGREED, Slot("barrier")], counts=counts), dead)) is not None


def test_calls_are_not_compared_once_a_ring_has_overflowed() -> None:
    overflowed = rank(1, [Slot("barrier"), *AGREED], recorder=False, counts={"all_reduce": 5000})

    assert find_conflict(job(rank(0, [*AGREED, Slot("barrier")], recorder=False), overflowed)) is None


def test_ddps_own_traffic_does_not_count_among_calls() -> None:
    stepped, idle = [*gradients(2), *did("barrier")], did("barrier")

    assert conflict_of(stepped, idle, recorder=False) is None


def test_nothing_is_no_conflict() -> None:
    assert find_conflict(job()) is None
    assert find_conflict(job(rank(0, []), rank(1, []))) is None
    assert find_conflict(job(rank(0))) is None


def test_the_last_collective_of_a_group_is_found_however_long_ago_it_was() -> None:
    log = log_of([*did(times=3, group="rows"), *did(times=500, group="columns")])

    assert (last_seq(log, "rows"), last_seq(log, "columns"), last_seq(log, "nobody")) == (3, 500, 0)
    assert last_seq(CollectiveLog(), "0") == 0
