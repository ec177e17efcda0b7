"""The odd ones out among values that should be the same."""

from __future__ import annotations

from rankwise.meet.differences import find_difference, hosts_text


def test_the_same_value_everywhere_is_no_difference() -> None:
    assert find_difference({0: "gloo", 1: "gloo"}) is None
    assert find_difference(dict[int, str]()) is None


def test_the_minority_is_odd() -> None:
    differs = find_difference({0: "2.13", 1: "2.13", 2: "2.13", 3: "2.11"})

    assert differs is not None and (differs.usual, differs.odd) == ("2.13", (3,))
    assert differs.text("torch ") == "torch 2.13 on ranks 0-2, torch 2.11 on rank 3"


def test_without_a_majority_all_are_odd() -> None:
    differs = find_difference({"a": 1, "b": 1, "c": 2, "d": 3})

    assert differs is not None and (differs.usual, differs.odd) == (None, ("a", "b", "c", "d"))
    assert differs.text() == "1 on a and b, 2 on c, 3 on d"


def test_many_hosts_are_counted_not_listed() -> None:
    assert hosts_text([f"n{i}" for i in range(9)]) == "n0, n1, n2, n3 and 5 more"
    assert hosts_text([]) == "no host"
