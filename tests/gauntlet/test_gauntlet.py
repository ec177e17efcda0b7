"""Every gauntlet case: the right rank, line and reason for a fault, no alarm for a healthy job, nothing left running."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.gauntlet.arena import Case, all_cases, find_problems, run_case, why_not_here

RUN_ALL = os.environ.get("RANKWISE_GAUNTLET") == "all"
# Every kind of fault, both ways to launch, healthy jobs of all sorts; as many as CI has time for. RANKWISE_GAUNTLET=all runs all.
USUAL = frozenset((Path(__file__).parent / "usual.txt").read_text().split())
# A dozen that start quickly: two ranks where two will do, and few that import what torch's optimizers need. The others of them are for
# `make test-live`, and their recordings for `test_replay.py`.
FEW = frozenset(
    {
        "crash_abort",
        "crash_dataloader_worker_exception",
        "init_port_held_by_old_job",
        "mismatch_barrier_under_if",
        "mismatch_dtype",
        "mismatch_except_skips_reduce",
        "mismatch_recv_tag",
        "mismatch_shorter_loop",
        "ok_accumulation_no_sync",
        "ok_async_overlap",
        "ok_caught_exceptions",
        "stuck_lock_never_released",
    }
)


def _parameters() -> list:
    later = pytest.mark.skipif(not RUN_ALL, reason="not one of the usual cases; RANKWISE_GAUNTLET=all runs it")
    return [
        pytest.param(
            case, id=case.id, marks=[] if case.id in FEW else [pytest.mark.live] if case.id in USUAL else [pytest.mark.live, later]
        )
        for case in all_cases()
    ]


@pytest.mark.parametrize("case", _parameters())
def test_case(case: Case, tmp_path: Path) -> None:
    if reason := why_not_here(case):
        pytest.skip(reason)
    run = run_case(case, tmp_path)
    problems = find_problems(run)
    assert not problems, "\n".join([*problems, f"said: {run.top.get('summary')}", f"truth: {case.cause}", run.output[-3000:]])
