"""`collective`: what has the fault is named with its host, and what looks like it and has not passes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.preflight.checks.judging import Fault, assert_told

BETWEEN_HOSTS: dict[str, Fault] = {
    "wrong result": (lambda job: replace(job, collective={"gloo": {"node-a": {"wrong": ["all_reduce gave 2, not 3"], "bytes_per_s": 1e9}}}), "fail", "RW609", "gave 2, not 3", "a"),
    "slow collective": (lambda job: replace(job, collective={"gloo": {"node-a": {"wrong": [], "bytes_per_s": 1e7}}}), "warn", "RW610", "moves 80 Mbit/s, while the slowest link alone moves 8.8 Gbit/s", ""),
    "collective fails": (lambda job: replace(job, collective={"gloo": {"node-b": {"error": "connect timeout"}}}), "fail", "RW114", "1 rank failed", "b"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BETWEEN_HOSTS)
def test_a_fault_is_named_and_placed(fault: str) -> None:
    assert_told("collective", BETWEEN_HOSTS[fault])
