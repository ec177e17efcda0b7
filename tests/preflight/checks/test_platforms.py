"""`platforms`: what has the fault is named with its host, and what looks like it and has not passes."""

from __future__ import annotations

import pytest

from tests.preflight.checks.judging import Change, assert_told_on_node_b
from tests.preflight.facts import facts_of

HEALTHY = {"os": "Debian 12", "kernel": "6.1", "libc": "glibc 2.36", "arch": "x86_64", "cpu": "EPYC", "cores": "32"}

ON_ONE_HOST: dict[str, tuple[Change, str, str, str]] = {
    "kernel": (lambda job: facts_of(job, 1, "platforms").update(cpu="Xeon"), "warn", "RW623", "Xeon on node-b"),
}  # fmt: skip


@pytest.mark.parametrize("fault", ON_ONE_HOST)
def test_a_fault_is_named_on_its_host(fault: str) -> None:
    assert_told_on_node_b("platforms", ON_ONE_HOST[fault])
