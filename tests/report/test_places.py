"""The `where` lines: culprits first, ranks at the same place together, short at any world size."""

from __future__ import annotations

import pytest

from rankwise.findings import Finding, Place, Wait
from rankwise.report.places import op_text, short_ranks, where_lines


def finding(*, culprits: tuple[Place, ...] = (), waiting: tuple[Wait, ...] = ()) -> Finding:
    return Finding("RW201", "skipped-collective", "error", True, "what", culprits=culprits, waiting=waiting)


def test_groups_waiting_ranks_by_place_and_operation() -> None:
    waits = tuple(Wait(rank, "all_reduce", "default", 7 if rank < 6 else 8, "train.py", 88, "step") for rank in (0, 1, 2, 4, 5, 6))

    lines = where_lines(finding(culprits=(Place(3, "node-a", 42, "eval.py", 41, "evaluate"),), waiting=waits))

    assert [(line.place, line.who, line.op) for line in lines] == [
        ("eval.py:41 evaluate()", "rank 3 (pid 42 on node-a)", ""),
        ("train.py:88 step()", "ranks 0-2, 4, 5", "all_reduce #7"),
        ("train.py:88 step()", "rank 6", "all_reduce #8"),
    ]
    assert [line.is_culprit for line in lines] == [True, False, False]


def test_several_culprits_at_one_place_are_one_line() -> None:
    lines = where_lines(finding(culprits=tuple(Place(rank, "n", 40 + rank, "a.py", 1, "f") for rank in (1, 2, 3))))

    assert [line.who for line in lines] == ["ranks 1-3"]


def test_what_is_not_known_is_not_guessed() -> None:
    (line,) = where_lines(finding(culprits=(Place(),)))

    assert (line.ranks, line.who, line.place) == ((), "a rank that could not be identified", "")


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([3], "rank 3"), (range(8), "ranks 0-7"), (range(1, 4096, 2), "ranks 1, 3, 5, 7, 9, 11, 13, 15 and 2,040 more"), ([], "no rank")],
)
def test_ranks_stay_short(ranks: list[int], text: str) -> None:
    assert short_ranks(ranks) == text


@pytest.mark.parametrize(
    ("op", "seq", "group", "text"),
    [
        ("all_reduce", 4118, "default", "all_reduce #4118"),
        ("barrier", None, "0", "barrier"),
        ("barrier", 3, "tp", "barrier #3 of group tp"),
        (None, 3, "tp", ""),
    ],
)
def test_operations(op: str | None, seq: int | None, group: str, text: str) -> None:
    assert op_text(op, seq, group) == text
