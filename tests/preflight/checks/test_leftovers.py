"""`leftovers`: what has the fault is named with its host, and what looks like it and has not passes."""

from __future__ import annotations

import pytest

from tests.preflight.checks.judging import Change, assert_told_on_node_b
from tests.preflight.facts import GIB, facts_of

HEALTHY = {"found": [], "count": 0, "unseen": 0}

ON_ONE_HOST: dict[str, tuple[Change, str, str, str]] = {
    "leftover": (
        lambda job: facts_of(job, 1, "leftovers").update(
            count=1, found=[{"pid": 7, "program": "python", "user": "me", "rank": "3", "memory": GIB, "age_s": 86400.0}]
        ),
        "warn", "RW617", "1 process of an earlier job still runs on node-b",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", ON_ONE_HOST)
def test_a_fault_is_named_on_its_host(fault: str) -> None:
    assert_told_on_node_b("leftovers", ON_ONE_HOST[fault])
