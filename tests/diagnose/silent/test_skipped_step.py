"""A rank that made fewer steps from the same reductions, or one from gradients that nobody reduced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rankwise.diagnose.silent.skipped_step import find
from rankwise.evidence.audit import Audit, Window
from tests.diagnose.silent.audits import DDP, audited, lines, row, step


def stepping(*made: int, weight: int = 1, windows: tuple[Window, ...] = (), **facts: Any) -> Audit:
    """A rank by how many steps it had made after each reduction."""
    steps = tuple(step(n, row(weight=weight * 10 + syncs), syncs=syncs, **facts) for syncs, n in enumerate(made, 1))
    return Audit(wrappers=(DDP,), steps=steps, windows=windows)


def test_a_rank_that_skipped_steps_is_named() -> None:
    found = find(audited(stepping(1, 2, 3), stepping(1, 1, 2, weight=2)))

    assert (found.code, found.severity, found.certain) == ("RW770", "warning", True)
    assert "rank 1 skipped optimizer steps" in found.summary
    assert "reduced 2 times: rank 0 2, rank 1 1" in found.why and lines(found) == {1: 20}


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (stepping(1, 2, 3), stepping(1, 2, 3)),
        (stepping(1, 2, 3), stepping(1, 2, 2, weight=2)),  # at one step only
        (stepping(1, 2, 3), stepping(1, 1, 2)),  # the weights are the same: it skipped nothing that matters
        (stepping(1, 2, 3), stepping(1, 2, 3, weight=2)),  # as many steps: another fault
        (stepping(1, 2, 3), replace(stepping(1, 1, 2, weight=2), wrappers=())),
        (stepping(1, 2, 3), stepping(1, 1, 2, weight=2, joined=True)),
        (stepping(1, 2, 3), stepping(1, 1, 2, weight=2, hooked=True)),
        (stepping(1, 2, 3, of_model=False), stepping(1, 1, 2, weight=2, of_model=False)),
    ],
)
def test_what_is_no_skipped_step(a: Audit, b: Audit) -> None:
    assert find(audited(a, b)) is None


USUAL = Window(0, "zns", 0, 3, 20, 1, {"n": 11, "s": 10})


@pytest.mark.parametrize(
    ("pattern", "says"), [("zn", "the micro-step that reduces was left out"), ("znn", "no_sync() was on in all of them")]
)
def test_a_step_from_gradients_that_nobody_reduced_is_named_instead(pattern: str, says: str) -> None:
    odd = Window(0, pattern, 2, 1, 20, 1, {"n": 11})

    found = find(audited(stepping(1, 3, 4, windows=(USUAL, odd)), stepping(1, 2, 3, weight=2, windows=(USUAL,))))

    assert (found.code, found.certain) == ("RW760", True)
    assert "rank 0 made a step from gradients that were not reduced" in found.summary and says in found.why
    assert lines(found) == {0: 11}


@pytest.mark.parametrize(
    "windows",
    [
        (replace(USUAL, pattern="zn", count=1),),
        (USUAL, replace(USUAL, pattern="zn", count=2)),
        (USUAL, replace(USUAL, pattern="zn", count=1, first=4)),
        (USUAL, replace(USUAL, pattern="zn", count=1), replace(USUAL, pattern="znn", count=1)),
        (USUAL, replace(USUAL, pattern="z", count=1)),
        (USUAL, replace(USUAL, pattern="zn", count=1, i=1)),
    ],
    ids=["it has no other window", "twice", "after that step", "several", "no backward at all", "another optimizer's"],
)
def test_otherwise_the_steps_were_skipped(windows: tuple[Window, ...]) -> None:
    assert find(audited(stepping(1, 3, 4, windows=windows), stepping(1, 2, 3, weight=2))).code == "RW770"
