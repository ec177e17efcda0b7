"""`variables`: what has the fault is named with its host, and what looks like it and has not passes."""

from __future__ import annotations

import pytest

from rankwise.preflight.checks.variables import _shown
from tests.preflight.checks.judging import Change, assert_told_on_node_b, result_of
from tests.preflight.facts import facts_of, job_of

HEALTHY = {"variables": {"NCCL_DEBUG": "WARN"}}

ON_ONE_HOST: dict[str, tuple[Change, str, str, str]] = {
    "nccl variable": (lambda job: facts_of(job, 1, "variables")["variables"].update(NCCL_PROTO="LL"), "fail", "RW125", "NCCL_PROTO"),
    "own variable": (lambda job: facts_of(job, 1, "variables")["variables"].update(CUDA_VISIBLE_DEVICES="1"), "warn", "RW125", "not set on"),
}  # fmt: skip


@pytest.mark.parametrize("fault", ON_ONE_HOST)
def test_a_fault_is_named_on_its_host(fault: str) -> None:
    assert_told_on_node_b("variables", ON_ONE_HOST[fault])


def test_values_of_secrets_are_compared_but_never_shown() -> None:
    job = job_of(2)
    for node, secret in enumerate(("hunter2", "hunter3")):
        facts_of(job, node, "variables")["variables"]["NCCL_API_KEY"] = _shown("NCCL_API_KEY", secret, "job")
    result = result_of(job, "variables")

    assert (result.status, result.findings[0].code) == ("fail", "RW125")
    assert "hidden value A on node-a" in result.findings[0].summary
    assert "hunter" not in str(result.to_dict()) and "hunter" not in str(job.hosts)
