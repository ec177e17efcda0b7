"""`link-loss`: what has the fault is named with its host, and what looks like it and has not passes."""

from __future__ import annotations

import pytest

from tests.preflight.checks.judging import Fault, assert_told, links

BETWEEN_HOSTS: dict[str, Fault] = {
    "loss on a host": (links("ab", "bc", lost_out=0.3), "fail", "RW605", "30% of packets get lost on every link of node-b", "b"),
    "loss on a link": (links("bc", lost_back=0.3), "fail", "RW605", "the link node-b – node-c", "bc"),
    "a little loss": (links("bc", lost_back=0.03), "warn", "RW605", "3%", "bc"),
    "UDP blocked": (links("bc", lost_back=None, lost_out=None), "not possible", "", "", ""),
}  # fmt: skip


@pytest.mark.parametrize("fault", BETWEEN_HOSTS)
def test_a_fault_is_named_and_placed(fault: str) -> None:
    assert_told("link-loss", BETWEEN_HOSTS[fault])
