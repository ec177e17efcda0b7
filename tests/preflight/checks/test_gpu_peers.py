"""`gpu-peers`: what has the fault is named with its host, and what looks like it and has not passes."""

from __future__ import annotations

import pytest

from tests.preflight.checks.judging import Change, assert_told_on_node_b
from tests.preflight.facts import facts_of

HEALTHY = {"gpus": 2, "blocked": []}

ON_ONE_HOST: dict[str, tuple[Change, str, str, str]] = {
    "no peer access": (lambda job: facts_of(job, 1, "gpu-peers").update(blocked=[[0, 1]]), "warn", "RW634", "0→1"),
}  # fmt: skip


@pytest.mark.parametrize("fault", ON_ONE_HOST)
def test_a_fault_is_named_on_its_host(fault: str) -> None:
    assert_told_on_node_b("gpu-peers", ON_ONE_HOST[fault])
