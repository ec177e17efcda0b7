"""`clock`: what has the fault is named with its host, and what looks like it and has not passes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.preflight.checks.judging import Fault, assert_told

BETWEEN_HOSTS: dict[str, Fault] = {
    "clock": (lambda job: replace(job, offsets_s={**job.offsets_s, "node-b": (3600.0, 0.01)}), "fail", "RW616", "the clock of node-b is 60 min 0 s ahead of node-a and node-c", "b"),
    "clock of node 0": (lambda job: replace(job, offsets_s={"node-a": (0.0, 0.0), "node-b": (-5.0, 0.01), "node-c": (-5.1, 0.01)}), "warn", "RW616", "the clock of node-a is", "a"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BETWEEN_HOSTS)
def test_a_fault_is_named_and_placed(fault: str) -> None:
    assert_told("clock", BETWEEN_HOSTS[fault])
