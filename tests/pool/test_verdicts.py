"""What a pool's errors say of what went wrong in a worker."""

from __future__ import annotations

import pytest

from rankwise.errors import RankwiseError
from rankwise.findings import Finding
from rankwise.pool.verdicts import build_failed

TRACEBACK = 'Traceback (most recent call last):\n  File "models.py", line 3, in build\n    RW1\n'
FINDINGS = [
    Finding(
        "RW734",
        "does-not-fit",
        "error",
        True,
        "last.pt does not fit",
        why="model  checkpoint\nbias   missing",
        next=("build it", "explain"),
    ),
    Finding("RW733", "unreadable", "error", True, "last.pt cannot be read", next=("look",)),
    Finding("RW001", "wrong-usage", "error", True, "no such thing", why="because"),
    Finding("RW001", "wrong-usage", "error", True, "two\nlines"),
]


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.summary.split()[0])
def test_a_finding_that_a_build_ended_in_is_told_instead_of_its_traceback(finding: Finding) -> None:
    cause = RankwiseError(finding)
    error = build_failed("mlp", f"{TRACEBACK}rankwise.weights.records.CheckpointError: {cause}\n", 1, cause)

    assert error.finding.summary == f"model 'mlp' could not be built: {finding.code} {finding.summary}"
    assert (error.finding.why, error.finding.next) == (finding.why, finding.next)
    assert str(error).startswith("RW807 model 'mlp'") and finding.code in str(error)


@pytest.mark.parametrize("last", ["ValueError: RW734 is not a finding", "SystemExit: 3", "KeyError: 'RW734'"])
def test_any_other_traceback_is_told_itself(last: str) -> None:
    error = build_failed("mlp", TRACEBACK + last, 2, ValueError(last))

    assert error.finding.summary == f"model 'mlp' could not be built (2 times): {last}"
    assert error.finding.why == TRACEBACK + last
