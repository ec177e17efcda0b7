"""Who is missing, who came twice, and the line shown while waiting."""

from __future__ import annotations

from rankwise.meet.roster import claimed_twice, missing_numbers, waiting_text, with_host


def test_missing_and_duplicate_numbers() -> None:
    assert missing_numbers({0, 2, None}, 4) == [1, 3]
    assert claimed_twice([(1, "b"), (0, "a"), (1, "c"), (None, "d"), (None, "e")]) == {1: ["b", "c"]}


def test_a_host_is_named_only_where_all_are_on_it() -> None:
    assert with_host([2, 3], {2: "node-b", 3: "node-b"}) == "ranks 2, 3 on node-b"
    assert with_host([2, 3], {2: "node-b"}) == "ranks 2, 3"
    assert with_host([2, 3], {2: "node-b", 3: "node-c"}) == "ranks 2, 3"


def test_the_waiting_line() -> None:
    assert waiting_text([2], {2: "node-b"}, 4, 14.2) == "3 of 4 ranks registered, waiting for rank 2 on node-b, 14 s"
    assert waiting_text([], {}, 4, 3.0, then="connected") == "4 of 4 ranks registered, not yet: connected, 3 s"
