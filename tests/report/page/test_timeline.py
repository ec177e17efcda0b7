"""The timeline's model: where ranks part, which of them are odd, and what is not claimed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rankwise.diagnose.match import find_conflict
from rankwise.evidence.collective_log import CollectiveLog, Signature
from rankwise.evidence.records import JobEvidence, NewGroup, RankEvidence
from rankwise.findings import Finding, Place
from rankwise.report.page.reported_job import ReportedJob, reported_job
from rankwise.report.page.timeline import COLUMNS, MAX_ROWS, Cell, Strip, Timeline, build_timeline

LETTERS = {"done": "d", "pending": "p", "missing": "-", "unknown": "."}


def log_of(ops: Sequence[str], *, first: int = 1, group: str = "0", pending: int = 0) -> CollectiveLog:
    """One entry per op; `all_reduce:3` has size 3, the last `pending` ones are not done."""
    log = CollectiveLog()
    for i, op in enumerate(ops):
        name, _, size = op.partition(":")
        log.add(first + i, Signature(group, name, (int(size or 1),), "float32"), 1000 + i, i < len(ops) - pending)
    return log


def reported_of(
    *logs: CollectiveLog, culprit: int | None = None, blind: tuple[int, ...] = (), groups: tuple[NewGroup, ...] = ()
) -> ReportedJob:
    ranks = {
        rank: RankEvidence(rank, collectives=log, blind=("no record",) if rank in blind else (), groups=groups)
        for rank, log in enumerate(logs)
    }
    found = Finding("RW201", "skipped-collective", "error", True, "what", culprits=() if culprit is None else (Place(culprit),))
    return reported_job(JobEvidence((), 0, 10_000, len(logs), 10.0, ranks), [found])


def timeline_of(*logs: CollectiveLog) -> Timeline:
    return build_timeline(reported_of(*logs))


def look(cells: tuple[Cell, ...]) -> str:
    """An odd cell is a "!", a missing one that is blamed an "x"."""
    return "".join(("x" if cell.state == "missing" else "!") if cell.is_odd else LETTERS[cell.state] for cell in cells)


def looks(strip: Strip) -> dict[tuple[int, ...], str]:
    return {row.ranks: look(row.cells) for row in strip.rows}


def test_a_rank_that_never_came() -> None:
    waiting = log_of(["all_reduce"] * 5, pending=1)

    (strip,) = timeline_of(waiting, waiting, log_of(["all_reduce"] * 4)).shown

    assert strip.diverges_at == 5
    assert looks(strip) == {(0, 1): "ddddp", (2,): "ddddx"}


@pytest.mark.parametrize(
    ("culprit", "expected"),
    [(0, {(0,): "d!", (1,): "dd"}), (1, {(0,): "dd", (1,): "d!"}), (None, {(0,): "dd", (1,): "dd"})],
    ids=str,
)
def test_of_two_ranks_that_contradict_each_other_the_verdict_says_which_is_odd(culprit: int | None, expected: object) -> None:
    logs = log_of(["all_reduce", "all_reduce"]), log_of(["all_reduce", "broadcast"])

    (strip,) = build_timeline(reported_of(*logs, culprit=culprit)).shown

    assert strip.diverges_at == 2
    assert looks(strip) == expected


@pytest.mark.parametrize(
    ("culprit", "expected"),
    [(0, {(0,): "dp", (1, 2): "d-"}), (1, {(0,): "dp", (1,): "dx", (2,): "d-"}), (None, {(0,): "dp", (1, 2): "d-"})],
    ids=str,
)
def test_ranks_that_did_not_join_an_extra_collective_are_not_blamed(culprit: int | None, expected: object) -> None:
    """Rank 0 called one more than the others: whether it should not have, or they should, is the verdict's to say."""
    logs = log_of(["all_reduce", "broadcast"], pending=1), log_of(["all_reduce"]), log_of(["all_reduce"])

    (strip,) = build_timeline(reported_of(*logs, culprit=culprit)).shown

    assert looks(strip) == expected


@pytest.mark.parametrize("odd", ["broadcast", "all_reduce:2"])
def test_a_rank_that_called_something_else(odd: str) -> None:
    (strip,) = timeline_of(log_of(["all_reduce"] * 3), log_of(["all_reduce", odd, "all_reduce"]), log_of(["all_reduce"] * 3)).shown

    assert strip.diverges_at == 2
    assert looks(strip) == {(0, 2): "ddd", (1,): "d!d"}


def test_shapes_may_differ_where_torch_allows_it() -> None:
    (strip,) = timeline_of(log_of(["all_to_all:2"]), log_of(["all_to_all:3"])).shown

    assert strip.diverges_at is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Signature("0", "all_reduce", (2, 3), "float32"), Signature("0", "all_reduce", (3, 2), "float32")),
        (Signature("0", "all_reduce", (6,), "float32"), Signature("0", "all_reduce", (7,), "float32")),
        (Signature("0", "all_reduce", (6,), "float32"), Signature("0", "all_reduce", (6,), "")),
        (Signature("0", "gather", (2,), "float32", 0), Signature("0", "gather", (3,), "float32", 0)),
        (Signature("0", "scatter", (2,), "float32", 0), Signature("0", "scatter", (2,), "float32", 1)),
        (Signature("0", "reduce_scatter", (2,), "float32"), Signature("0", "reduce_scatter", (3,), "float32")),
    ],
    ids=str,
)
def test_the_timeline_shows_a_difference_where_the_verdict_sees_one(one: Signature, other: Signature) -> None:
    logs = [CollectiveLog(), CollectiveLog()]
    for log, what in zip(logs, (one, other)):
        log.add(1, what, 1, True)

    reported = reported_of(*logs)

    assert (build_timeline(reported).shown[0].diverges_at == 1) == (find_conflict(reported.job) is not None)


def test_a_reduce_operation_is_compared_only_where_every_rank_told_it() -> None:
    def log(*operations: str) -> CollectiveLog:
        log = CollectiveLog()
        for seq, operation in enumerate(operations, 1):
            log.add(seq, Signature("0", "all_reduce", (1,), "float32", reduce_op=operation), seq, True)
        return log

    assert timeline_of(log("SUM", "SUM"), log("SUM", "MAX"), log("SUM", "SUM")).shown[0].diverges_at == 2
    assert timeline_of(log("SUM", "SUM"), log("SUM", "MAX"), log("SUM", "")).shown[0].diverges_at is None


def test_what_left_the_record_is_unknown_not_missing() -> None:
    (strip,) = timeline_of(log_of(["all_reduce"] * 6), log_of(["all_reduce"] * 3, first=4)).shown

    assert strip.diverges_at is None
    assert looks(strip) == {(0,): "dddddd", (1,): "...ddd"}


def test_a_rank_that_could_not_be_seen_is_not_blamed() -> None:
    reported = reported_of(log_of(["all_reduce"] * 2), CollectiveLog(), blind=(1,))

    (strip,) = build_timeline(reported).shown

    assert strip.diverges_at is None and looks(strip)[(1,)] == ".."


def test_a_rank_that_called_nothing_is_missing_from_the_start() -> None:
    (strip,) = timeline_of(log_of(["barrier"], pending=1), CollectiveLog()).shown

    assert strip.diverges_at == 1 and looks(strip) == {(0,): "p", (1,): "-"}


def test_keeps_the_parting_in_sight_when_others_went_on() -> None:
    (strip,) = timeline_of(log_of(["all_reduce"] * 200), log_of(["all_reduce"] * 100)).shown

    assert strip.diverges_at == 101
    assert strip.columns[-1] == 112 and len(strip.columns) == COLUMNS
    assert strip.num_later == 88


def test_groups_are_told_apart_whatever_their_names_and_only_telling_ones_are_drawn() -> None:
    def log(pair: str, num_calls: int = 3) -> CollectiveLog:
        log = log_of(["all_reduce"] * 3)
        for seq in range(1, num_calls + 1):
            log.add(seq, Signature(pair, "all_gather", (1,)), 2000 + seq, True)
        return log

    timeline = timeline_of(log("1"), log("1"), log("2"), log("2", num_calls=2), log("10"), log("10"))

    (strip,) = timeline.shown
    assert (strip.group, strip.diverges_at, looks(strip)) == ("2", 3, {(2,): "ddd", (3,): "dd-"})
    assert timeline.agreeing == ("0", "1", "10") and timeline.parting == ()


def test_a_member_that_never_used_its_group_is_missing() -> None:
    member = NewGroup("tp", (0, 1), 1, 2)
    used = log_of(["barrier"], group="tp", pending=1)

    (strip,) = build_timeline(reported_of(used, CollectiveLog(), CollectiveLog(), groups=(member,))).shown

    assert looks(strip) == {(0,): "p", (1,): "-"}


def test_sends_and_receives_share_no_slots() -> None:
    assert timeline_of(log_of(["send"]), log_of(["recv"])).shown == ()


def test_when_there_is_no_room_the_culprit_is_kept() -> None:
    logs = [log_of([f"op_{rank}"] * 3) for rank in range(MAX_ROWS + 20)]

    (strip,) = build_timeline(reported_of(*logs, culprit=40)).shown

    assert len(strip.rows) == MAX_ROWS and strip.rows[0].ranks == (40,)
    assert len(strip.hidden) == 20


def test_a_damaged_log_is_read_as_far_as_it_goes() -> None:
    log = log_of(["all_reduce"] * 3)
    log.what[1] = 99

    (strip,) = timeline_of(log, log_of(["all_reduce"] * 3)).shown

    assert looks(strip) == {(0,): "d.d", (1,): "ddd"}
