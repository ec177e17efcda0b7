"""`memory`: what has the fault is named with its host, and what looks like it and has not passes."""

from __future__ import annotations

import pytest

from tests.preflight.checks.judging import Change, assert_told_on_node_b
from tests.preflight.facts import GIB, facts_of

HEALTHY = {"source": "machine", "limit": 64 * GIB, "left": 60 * GIB, "ranks": 2}

ON_ONE_HOST: dict[str, tuple[Change, str, str, str]] = {
    "little memory": (lambda job: facts_of(job, 1, "memory").update(source="cgroup", limit=GIB, left=GIB // 2), "fail", "RW611", "256 MiB"),
    "less memory than the others": (lambda job: facts_of(job, 1, "memory").update(left=10 * GIB), "warn", "RW611", "5.0 GiB"),
}  # fmt: skip


@pytest.mark.parametrize("fault", ON_ONE_HOST)
def test_a_fault_is_named_on_its_host(fault: str) -> None:
    assert_told_on_node_b("memory", ON_ONE_HOST[fault])
