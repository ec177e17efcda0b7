"""`gpu-memory`: what has the fault is named with its host, and what looks like it and has not passes."""

from __future__ import annotations

import pytest

from tests.preflight.checks.judging import Change, assert_told_on_node_b
from tests.preflight.facts import DRIVER, GIB, GPU, facts_of

HEALTHY = DRIVER

ON_ONE_HOST: dict[str, tuple[Change, str, str, str]] = {
    "GPU memory": (lambda job: facts_of(job, 1, "gpu-memory").update(gpus=[GPU, GPU | {"used": 100 * GIB}]), "fail", "RW631", "GPU 1 of node-b"),
    "some GPU memory": (lambda job: facts_of(job, 1, "gpu-memory").update(gpus=[GPU | {"used": 2 * GIB}]), "warn", "RW631", "2.0 GiB"),
}  # fmt: skip


@pytest.mark.parametrize("fault", ON_ONE_HOST)
def test_a_fault_is_named_on_its_host(fault: str) -> None:
    assert_told_on_node_b("gpu-memory", ON_ONE_HOST[fault])
