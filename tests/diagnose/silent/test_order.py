"""The same tensors reduced in another order on another rank: two places at least, and the same labels in all."""

from __future__ import annotations

import pytest

from rankwise.diagnose.silent.order import find
from rankwise.evidence.audit import Audit, Reduced
from tests.diagnose.silent.audits import audited, lines


def reducing(*labels: str, site: int = 10, op: str = "all_reduce", group: str = "0", words: bool = False) -> Audit:
    """A rank whose calls have these labels: of a parameter, or of the variables in sight."""
    given = [("", (label,)) if words else (label, ()) for label in labels]
    return Audit(reduces=tuple(Reduced(op, group, n, label, texts, (), 8, site) for n, (label, texts) in enumerate(given)))


def test_the_first_place_at_which_the_ranks_differ_is_shown() -> None:
    found = find(audited(reducing("a", "b", "c"), reducing("a", "c", "b", site=11)))

    assert (found.code, found.severity, found.certain) == ("RW783", "warning", True)
    assert "b on rank 0 with c on rank 1" in found.summary and "call 1 of all_reduce" in found.why and "for 2 calls" in found.why
    assert lines(found) == {0: 10, 1: 11}


def test_a_variable_that_holds_a_name_is_a_label() -> None:
    found = find(audited(reducing("name=acc", "name=loss", words=True), reducing("name=loss", "name=acc", words=True)))

    assert "acc on rank 0 with loss on rank 1" in found.summary


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (reducing("a", "b"), reducing("a", "b")),
        (reducing("a", "b"), reducing("a", "a")),  # no shuffling of the same labels
        (reducing("host=a", "host=a", words=True), reducing("host=b", "host=b", words=True)),  # each rank's name for itself
        (reducing("a", "b"), reducing("b", "a", group="1")),
        (reducing("a", "b"), reducing("b", "a", op="broadcast")),
        (reducing("a", "b", ""), reducing("", "a", "b")),
        (reducing("a", "b", "a", "c"), reducing("a", "b")),
    ],
)
def test_what_is_no_other_order(a: Audit, b: Audit) -> None:
    assert find(audited(a, b)) is None


def test_one_place_that_differs_is_not_enough() -> None:
    assert find(audited(reducing("a", "b", "b", "a"), reducing("a", "b", "a", "a"))) is None


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("names = sorted(names)\nfor name in names:\n    pass\n", 1),
        ("for name in names:\n    pass\n", 1),
        ("names = sorted(names)\ndef main():\n    for name in names:\n        pass\n", 3),
        ("for step in steps:\n    for name in names:  # sorted\n        pass\n", 2),
        ("x = [f(n) for n in names]\n", 1),
    ],
    ids=["a sorting", "a loop", "of this function only", "the nearest loop", "a comprehension"],
)
def test_the_line_that_decides_the_order_is_named_too(source: str, line: int) -> None:
    calls = reducing("a", "b", site=5), reducing("b", "a", site=5)

    found = find(audited(*calls, sources={"train.py": source + "\n" * (5 - source.count("\n"))}))

    assert [place.line for place in found.culprits] == [line, 5, line, 5]
