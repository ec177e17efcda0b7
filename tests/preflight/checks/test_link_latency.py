"""`link-latency`: what has the fault is named with its host, and what looks like it and has not passes."""

from __future__ import annotations

import pytest

from tests.preflight.checks.judging import Fault, assert_told, links

BETWEEN_HOSTS: dict[str, Fault] = {
    "latency": (links("ab", "bc", rtt_s=0.2), "fail", "RW606", "200 ms on every link of node-b", "b"),
    "some latency": (links("ab", rtt_s=0.02), "warn", "RW606", "20.0 ms on the link node-a – node-b", "ab"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BETWEEN_HOSTS)
def test_a_fault_is_named_and_placed(fault: str) -> None:
    assert_told("link-latency", BETWEEN_HOSTS[fault])
