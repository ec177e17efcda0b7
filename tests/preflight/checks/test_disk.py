"""`disk`: what has the fault is named with its host, and what looks like it and has not passes."""

from __future__ import annotations

import pytest

from tests.preflight.checks.judging import Change, assert_told_on_node_b
from tests.preflight.facts import GIB, facts_of

HEALTHY = {"folder": "/data", "free": 500 * GIB, "error": ""}

ON_ONE_HOST: dict[str, tuple[Change, str, str, str]] = {
    "disk full": (lambda job: facts_of(job, 1, "disk").update(free=1 << 20), "fail", "RW615", "1 MiB free"),
    "disk not writable": (lambda job: facts_of(job, 1, "disk").update(error="may not be written"), "fail", "RW615", "may not be written"),
}  # fmt: skip


@pytest.mark.parametrize("fault", ON_ONE_HOST)
def test_a_fault_is_named_on_its_host(fault: str) -> None:
    assert_told_on_node_b("disk", ON_ONE_HOST[fault])
