"""`gpu-count`: what has the fault is named with its host, and what looks like it and has not passes."""

from __future__ import annotations

import pytest

from tests.preflight.checks.judging import Change, assert_told_on_node_b
from tests.preflight.facts import facts_of

HEALTHY = {
    "present": 2,
    "names": ["NVIDIA H200", "NVIDIA H200"],
    "why_none": "",
    "seen_by_torch": 2,
    "cuda_build": True,
    "error": "",
    "visible": None,
    "ranks": 2,
}

ON_ONE_HOST: dict[str, tuple[Change, str, str, str]] = {
    "too few GPUs": (lambda job: facts_of(job, 1, "gpu-count").update(seen_by_torch=1), "fail", "RW122", "1 usable GPU for 2 ranks"),
    "no GPU at all": (lambda job: facts_of(job, 1, "gpu-count").update(present=0, seen_by_torch=0, names=[]), "fail", "RW122", "0 usable"),
}  # fmt: skip


@pytest.mark.parametrize("fault", ON_ONE_HOST)
def test_a_fault_is_named_on_its_host(fault: str) -> None:
    assert_told_on_node_b("gpu-count", ON_ONE_HOST[fault])
