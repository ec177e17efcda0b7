"""What the watch keeps and what it takes back."""

from __future__ import annotations

import pytest

from rankwise.causes import load_cause
from rankwise.launch.watch import Report, has_outlasted_timeout, still_true_of_completed
from tests.diagnose.jobs import NOW_NS, SECOND, elsewhere, finished, job, raised, rank, root, waiting


@pytest.mark.parametrize(("backend", "seconds", "expected"), [("nccl", 1900, True), ("nccl", 60, False), ("gloo", 1900, False)])
def test_a_suspicion_that_outlasted_the_timeout_of_nccl_is_kept(backend: str, seconds: int, expected: bool) -> None:
    """NCCL's watchdog ends the job long after the rank has come: what was told is why. Ten seconds are over when it is told, of 1800."""
    evidence = job(waiting(0, backend=backend), elsewhere(1, backend=backend))
    told = Report("stalled", None, [root(evidence)], evidence, 100.0, 10.0, False)

    assert has_outlasted_timeout(told, NOW_NS + seconds * SECOND) is expected


def test_a_suspicion_is_kept_where_a_rank_failed_though_the_launcher_says_that_all_is_well() -> None:
    suspected = load_cause("RW208").finding("only rank 0 called barrier", certain=False)

    assert still_true_of_completed([suspected], job(finished(0), raised(rank(1)))) == [suspected]
    assert still_true_of_completed([suspected], job(finished(0), finished(1))) == []
