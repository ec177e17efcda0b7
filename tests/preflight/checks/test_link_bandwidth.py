"""`link-bandwidth`: what has the fault is named with its host, and what looks like it and has not passes."""

from __future__ import annotations

import pytest

from tests.preflight.checks.judging import Fault, assert_told, links

BETWEEN_HOSTS: dict[str, Fault] = {
    "slow link": (links("ac", up=1.2e5), "fail", "RW607", "the link node-a – node-c moves 960 kbit/s", "ac"),
    "slow everywhere": (links("ab", "ac", "bc", up=30e6), "warn", "RW607", "all links move 240 Mbit/s", "abc"),
    "slow because of loss": (links("ac", up=1.2e5, lost_out=0.3), "pass", "", "", ""),
}  # fmt: skip


@pytest.mark.parametrize("fault", BETWEEN_HOSTS)
def test_a_fault_is_named_and_placed(fault: str) -> None:
    assert_told("link-bandwidth", BETWEEN_HOSTS[fault])
