"""The GradScaler's order: unscale before clipping, and all of its halves or none."""

from __future__ import annotations

import pytest

from rankwise.diagnose.silent.scaling import find
from rankwise.evidence.audit import Audit, Window
from tests.diagnose.silent.audits import audited, lines


def windows(pattern: str, count: int = 2) -> Audit:
    return Audit(windows=(Window(0, pattern, 0, count, 20, 1, {"c": 15}),))


@pytest.mark.parametrize(
    ("pattern", "code", "says", "line"),
    [
        ("zgscG", "RW764", "clipped before they are unscaled", 15),
        ("zgscuG", "RW764", "clipped before they are unscaled", 15),
        ("zgs", "RW765", "the optimizer steps by itself with the scaled gradients", 20),
        ("zsG", "RW765", "of a loss that it never scaled", 20),
    ],
)
def test_a_step_in_the_wrong_order_is_proven(pattern: str, code: str, says: str, line: int) -> None:
    found = find(audited(windows(pattern)))

    assert (found.code, found.severity, found.certain) == (code, "warning", True)
    assert says in found.summary and lines(found) == {0: line}


@pytest.mark.parametrize("pattern", ["zgsuCG", "zgsG", "zs", "zgsu", "zsc", "zg", "zG"])
def test_a_step_in_the_right_order_is_no_finding(pattern: str) -> None:
    assert find(audited(windows(pattern))) is None


def test_once_is_not_enough() -> None:
    assert find(audited(windows("zgscG", count=1))) is None
    assert find(audited(windows("zgs", count=1))) is None
