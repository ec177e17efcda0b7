"""`cpu`: what has the fault is named with its host, and what looks like it and has not passes."""

from __future__ import annotations

import pytest

from tests.preflight.checks.judging import Change, assert_told_on_node_b
from tests.preflight.facts import facts_of

HEALTHY = {"cores": 16.0, "ranks": 2, "busy": 0.1, "steal": 0.0}

ON_ONE_HOST: dict[str, tuple[Change, str, str, str]] = {
    "few cores": (lambda job: facts_of(job, 1, "cpu").update(cores=1.0), "warn", "RW612", "1 cores for 2 ranks"),
    "busy": (lambda job: facts_of(job, 1, "cpu").update(busy=0.9), "warn", "RW612", "90% busy"),
    "steal": (lambda job: facts_of(job, 1, "cpu").update(steal=0.2), "warn", "RW612", "20%"),
}  # fmt: skip


@pytest.mark.parametrize("fault", ON_ONE_HOST)
def test_a_fault_is_named_on_its_host(fault: str) -> None:
    assert_told_on_node_b("cpu", ON_ONE_HOST[fault])
