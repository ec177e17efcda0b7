"""Processes that do not end after their script has: told after a while, as a suspicion, with what holds them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rankwise.diagnose import diagnose
from rankwise.evidence.records import Ended, RankEvidence
from rankwise.findings import Finding
from tests.diagnose.jobs import NOW_NS, SECOND, busy, elsewhere, ended, expect, job, main_thread, rank, thread

GONE = ended(rank(1), "finished", code=0)
JOINING = main_thread("/usr/lib/python3.11/queue.py:90 join", "telemetry.py:41 close")


def leaving(number: int, ago_s: float = 30.0, progress_ago_s: float | None = None, **facts: Any) -> RankEvidence:
    """A rank whose script came to its end a while ago, and whose process is still there."""
    over = Ended("finished", NOW_NS - int(ago_s * SECOND), code=0)
    progress_ns = over.time_ns if progress_ago_s is None else NOW_NS - int(progress_ago_s * SECOND)
    return replace(elsewhere(number, **{"threads": JOINING, **facts}), leaving=over, last_progress_ns=progress_ns)


def seen(*ranks: RankEvidence) -> Finding | None:
    return next((finding for finding in diagnose(job(*ranks)) if finding.code == "RW317"), None)


def test_rw317_the_line_that_does_not_return_is_told() -> None:
    found = seen(leaving(0), GONE)

    expect(found, "RW317", [0], "rank 0 hangs at exit", "rank 1 has ended", certain=False, deadlock=False, at="telemetry.py:41")
    assert "30 s" in found.why


@pytest.mark.parametrize(
    "ranks",
    [
        [leaving(0, ago_s=3.0), GONE],
        [leaving(0, progress_ago_s=3.0), GONE],
        [leaving(0), leaving(2, ago_s=3.0)],
        [leaving(0), busy(1)],
        [GONE],
    ],
    ids=["just over", "it still moves", "another one is just over", "another one is at work", "all are gone"],
)
def test_what_is_no_hang_at_exit(ranks: list[RankEvidence]) -> None:
    assert seen(*ranks) is None


def test_it_is_told_as_soon_as_a_job_counts_as_stalled() -> None:
    assert seen(leaving(0, ago_s=10.0), GONE) is not None
    assert seen(leaving(0, ago_s=9.9), GONE) is None


def test_threads_that_are_joined_are_named() -> None:
    waits = (*main_thread("/usr/lib/python3.11/threading.py:1590 _shutdown"), thread("upload.py:12 send", name="uploader"))

    found = seen(leaving(0, threads=waits), leaving(2, threads=waits))

    assert "ranks 0, 2 hang at exit" in found.summary
    assert "thread uploader is at upload.py:12" in found.why.replace("in send at", "at").replace("in send, ", "at ")
