"""`address`: what has the fault is named with its host, and what looks like it and has not passes."""

from __future__ import annotations

import pytest

from tests.preflight.checks.judging import Change, assert_told_on_node_b
from tests.preflight.facts import facts_of

HEALTHY = {"name": "node-a", "addresses": ["10.0.0.1"], "error": "", "own": False}

ON_ONE_HOST: dict[str, tuple[Change, str, str, str]] = {
    "name unresolvable": (
        lambda job: facts_of(job, 1, "address").update(addresses=[], error="Name or service not known"),
        "fail", "RW106", "node-b cannot resolve",
    ),
    "name means itself": (
        lambda job: [facts_of(job, 1, "address").update(addresses=["127.0.1.1"], own=True), job.hosts[0].plan.update(node_rank=None)],  # type: ignore[attr-defined]
        "pass", "", "",
    ),
    "another master": (
        lambda job: [job.hosts[1].plan.update(master="node-x"), facts_of(job, 1, "address").update(addresses=["10.0.0.9"])],  # type: ignore[attr-defined]
        "fail", "RW103", "node-x:29500 on node-b",
    ),
    "another port": (lambda job: job.hosts[1].plan.update(port=29501), "fail", "RW103", "29501"),  # type: ignore[attr-defined]
}  # fmt: skip


@pytest.mark.parametrize("fault", ON_ONE_HOST)
def test_a_fault_is_named_on_its_host(fault: str) -> None:
    assert_told_on_node_b("address", ON_ONE_HOST[fault])
