"""`code`: what has the fault is named with its host, and what looks like it and has not passes."""

from __future__ import annotations

import pytest

from tests.preflight.checks.judging import Change, assert_told_on_node_b
from tests.preflight.facts import facts_of

HEALTHY = {"files": {"train.py": "aa", "model.py": "bb"}, "script": "train.py"}

ON_ONE_HOST: dict[str, tuple[Change, str, str, str]] = {
    "code": (lambda job: facts_of(job, 1, "code")["files"].update({"model.py": "cc"}), "fail", "RW622", "model.py differs"),
    "file missing": (lambda job: facts_of(job, 1, "code")["files"].pop("model.py"), "fail", "RW622", "not there on node-b"),
}  # fmt: skip


@pytest.mark.parametrize("fault", ON_ONE_HOST)
def test_a_fault_is_named_on_its_host(fault: str) -> None:
    assert_told_on_node_b("code", ON_ONE_HOST[fault])
