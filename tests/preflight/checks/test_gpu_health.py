"""`gpu-health`: what has the fault is named with its host, and what looks like it and has not passes."""

from __future__ import annotations

import pytest

from tests.preflight.checks.judging import Change, assert_told_on_node_b
from tests.preflight.facts import DRIVER, GPU, facts_of

HEALTHY = DRIVER

ON_ONE_HOST: dict[str, tuple[Change, str, str, str]] = {
    "ECC": (lambda job: facts_of(job, 1, "gpu-health").update(gpus=[GPU | {"ecc": 3}]), "fail", "RW632", "3 uncorrected"),
    "Xid": (lambda job: facts_of(job, 1, "gpu-health").update(xids={"79 (PCI:0)": 1}), "warn", "RW632", "Xid 79"),
    "hot": (lambda job: facts_of(job, 1, "gpu-health").update(gpus=[GPU | {"throttle": 0x40}]), "warn", "RW633", "too hot"),
    "idle and power cap": (lambda job: facts_of(job, 1, "gpu-health").update(gpus=[GPU | {"throttle": 0x5}]), "pass", "", ""),
}  # fmt: skip


@pytest.mark.parametrize("fault", ON_ONE_HOST)
def test_a_fault_is_named_on_its_host(fault: str) -> None:
    assert_told_on_node_b("gpu-health", ON_ONE_HOST[fault])
