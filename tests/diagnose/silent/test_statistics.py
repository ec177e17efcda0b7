"""BatchNorm's statistics: a warning where each rank keeps its own and they are far apart, else a note or nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankwise.diagnose.silent.statistics import find
from rankwise.evidence.audit import Audit, BufferRow
from tests.diagnose.silent.audits import DDP, audited, lines, row, step


def keeping(mean: float, *, is_sent: bool = False, name: str = "norm.running_mean", steps: int = 2, variance: float = 4.0) -> Audit:
    buffers: tuple[BufferRow, ...] = ((name, int(mean * 100), (0.0, mean)), ("norm.running_var", 1, (variance, variance)))
    wrapper = replace(DDP, broadcast_buffers=is_sent)
    return Audit(wrappers=(wrapper,), steps=tuple(step(n, row(), buffers=buffers) for n in range(steps)))


@pytest.mark.parametrize(("mean", "severity"), [(1.0, "warning"), (0.98, "info")])
def test_own_statistics_half_a_deviation_apart_are_a_warning(mean: float, severity: str) -> None:
    found = find(audited(keeping(0.0), keeping(mean)))

    assert (found.code, found.severity, found.certain) == ("RW774", severity, True)
    assert "norm.running_mean is not the same" in found.summary and "broadcast_buffers=False" in found.why
    assert lines(found) == {0: DDP.site, 1: DDP.site}


@pytest.mark.parametrize(("mean", "is_found"), [(0.32, True), (0.28, False)])
def test_statistics_that_rank_0_sends_are_a_note_where_the_data_is_far_apart(mean: float, is_found: bool) -> None:
    found = find(audited(keeping(0.0, is_sent=True), keeping(mean, is_sent=True)))

    assert (found is not None) == is_found
    assert found is None or (found.severity == "info" and "only rank 0's count" in found.why)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (keeping(1.0), keeping(1.0)),
        (keeping(0.0, steps=1), keeping(1.0, steps=1)),
        (keeping(0.0, name="cache"), keeping(1.0, name="cache")),
        (keeping(0.0), Audit(wrappers=(DDP,), steps=(step(0, row()), step(1, row())))),
    ],
    ids=["the same", "one step", "a buffer of the user's", "none on one rank"],
)
def test_what_is_no_difference_of_statistics(a: Audit, b: Audit) -> None:
    assert find(audited(a, b)) is None
