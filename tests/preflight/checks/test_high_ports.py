"""`high-ports`: what has the fault is named with its host, and what looks like it and has not passes."""

from __future__ import annotations

import pytest

from tests.preflight.checks.judging import Fault, assert_told, reach

CLOSED = {"high": False, "gloo": False, "how": "no answer"}
BETWEEN_HOSTS: dict[str, Fault] = {
    "high ports blocked on a host": (reach("ab", "cb", "ba", "bc", **CLOSED), "fail", "RW114", "every link of node-b", "b"),
    "high ports blocked on a link": (reach("ab", **CLOSED), "fail", "RW114", "the link node-a – node-b", "ab"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BETWEEN_HOSTS)
def test_a_fault_is_named_and_placed(fault: str) -> None:
    assert_told("high-ports", BETWEEN_HOSTS[fault])
