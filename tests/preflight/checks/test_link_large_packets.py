"""`link-large-packets`: what has the fault is named with its host, and what looks like it and has not passes."""

from __future__ import annotations

import pytest

from tests.preflight.checks.judging import Fault, assert_told, links

BETWEEN_HOSTS: dict[str, Fault] = {
    "large packets": (links("ac", "bc", largest=1200), "fail", "RW608", "packets above 1228 bytes vanish on every link of node-c", "c"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BETWEEN_HOSTS)
def test_a_fault_is_named_and_placed(fault: str) -> None:
    assert_told("link-large-packets", BETWEEN_HOSTS[fault])
