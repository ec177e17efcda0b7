"""`fit`: what has the fault is named with its host, and what looks like it and has not passes."""

from __future__ import annotations

import pytest

from tests.preflight.checks.judging import Change, assert_told_on_node_b
from tests.preflight.facts import GIB, facts_of

HEALTHY = {
    "target": "m:step",
    "largest": 64,
    "first_failing": 96,
    "why": "",
    "error": "",
    "device": "cuda",
    "memory": 140 * GIB,
    "peak": GIB,
}

ON_ONE_HOST: dict[str, tuple[Change, str, str, str]] = {
    "nothing fits": (lambda job: facts_of(job, 1, "fit").update(largest=0, first_failing=1), "fail", "RW640", "not even one sample"),
    "the step fails": (lambda job: facts_of(job, 1, "fit").update(error="at size 1: TypeError: x"), "fail", "RW640", "m:step fails on node-b"),
}  # fmt: skip


@pytest.mark.parametrize("fault", ON_ONE_HOST)
def test_a_fault_is_named_on_its_host(fault: str) -> None:
    assert_told_on_node_b("fit", ON_ONE_HOST[fault])
