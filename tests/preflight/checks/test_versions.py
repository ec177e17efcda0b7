"""`versions`: what has the fault is named with its host, and what looks like it and has not passes."""

from __future__ import annotations

import pytest

from tests.preflight.checks.judging import Change, assert_told_on_node_b
from tests.preflight.facts import facts_of

HEALTHY = {
    "python": "3.12.1",
    "torch": "2.13.0",
    "cuda": "13.0",
    "driver": "580.1",
    "nccl": "2.28.9",
    "nccl_net": "none",
    "gloo": "there",
    "rankwise": "0.1.0",
    "error": "",
}

ON_ONE_HOST: dict[str, tuple[Change, str, str, str]] = {
    "torch version": (lambda job: facts_of(job, 1, "versions").update(torch="2.12.0"), "fail", "RW123", "2.13.0 on node-a and node-c, 2.12.0 on node-b"),
    "python patch": (lambda job: facts_of(job, 1, "versions").update(python="3.12.2"), "warn", "RW123", "3.12.2"),
    "python minor": (lambda job: facts_of(job, 1, "versions").update(python="3.11.2"), "fail", "RW123", "3.11.2"),
    "nccl plugin": (lambda job: facts_of(job, 1, "versions").update(nccl_net="libnccl-net.so"), "fail", "RW123", "libnccl-net"),
    "torch broken": (
        lambda job: facts_of(job, 1, "versions").update(error="ImportError: no libcudart", cuda="none", nccl="none", gloo="none"),
        "fail", "RW624", "torch cannot be imported on node-b",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", ON_ONE_HOST)
def test_a_fault_is_named_on_its_host(fault: str) -> None:
    assert_told_on_node_b("versions", ON_ONE_HOST[fault])
