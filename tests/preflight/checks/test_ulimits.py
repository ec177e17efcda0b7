"""`ulimits`: what has the fault is named with its host, and what looks like it and has not passes."""

from __future__ import annotations

import pytest

from tests.preflight.checks.judging import Change, assert_told_on_node_b
from tests.preflight.facts import facts_of

HEALTHY = {"files": 65536, "files_hard": 65536, "locked": None, "rdma": True, "ranks": 2}

ON_ONE_HOST: dict[str, tuple[Change, str, str, str]] = {
    "few files": (lambda job: facts_of(job, 1, "ulimits").update(files=64), "fail", "RW614", "64 files"),
    "the usual 1024 files": (lambda job: facts_of(job, 1, "ulimits").update(files=1024), "warn", "RW614", "1024 files"),
    "locked memory": (lambda job: facts_of(job, 1, "ulimits").update(locked=65536), "warn", "RW614", "64 KiB"),
}  # fmt: skip


@pytest.mark.parametrize("fault", ON_ONE_HOST)
def test_a_fault_is_named_on_its_host(fault: str) -> None:
    assert_told_on_node_b("ulimits", ON_ONE_HOST[fault])
