"""`shared-memory`: what has the fault is named with its host, and what looks like it and has not passes."""

from __future__ import annotations

import pytest

from tests.preflight.checks.judging import Change, assert_told_on_node_b
from tests.preflight.facts import GIB, facts_of

HEALTHY = {"size": 32 * GIB, "free": 32 * GIB, "ranks": 2, "error": ""}

ON_ONE_HOST: dict[str, tuple[Change, str, str, str]] = {
    "small shm": (lambda job: facts_of(job, 1, "shared-memory").update(size=64 << 20, free=64 << 20), "warn", "RW613", "64 MiB"),
    "no shm": (lambda job: facts_of(job, 1, "shared-memory").update(free=1 << 20), "fail", "RW613", "1 MiB"),
}  # fmt: skip


@pytest.mark.parametrize("fault", ON_ONE_HOST)
def test_a_fault_is_named_on_its_host(fault: str) -> None:
    assert_told_on_node_b("shared-memory", ON_ONE_HOST[fault])
