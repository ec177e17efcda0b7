"""`roll-call`: what has the fault is named with its host, and what looks like it and has not passes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.preflight.checks.judging import Fault, assert_told, told

BETWEEN_HOSTS: dict[str, Fault] = {
    "missing": (lambda job: replace(job, hosts=job.hosts[:2], meeting={"waited_s": 30.0}), "fail", "RW101", "node 2 did not come within 30.0 s: 2 of 3", ""),
    "duplicate": (told(c={"node_rank": 1}), "fail", "RW102", "node-b and node-c both say that they are node 1", "bc"),
    "nnodes": (told(b={"nnodes": 4}), "fail", "RW112", "3 on node-a and node-c, 4 on node-b", "b"),
    "nproc": (told(b={"nproc": 3}), "warn", "RW112", "3 on node-b", "b"),
    "late": (lambda job: replace(job, hosts=(*job.hosts[:2], replace(job.hosts[2], started_s=9.0))), "warn", "RW601", "node-c was started 9.0 s after", "c"),
    "stranger": (lambda job: replace(job, meeting={"strangers": [{"name": "node-x", "address": "10.0.0.9"}]}), "fail", "RW103", "node-x (10.0.0.9) came with another --rdzv-id", "x"),
    "fell silent": (lambda job: replace(job, meeting={"gone": ["node-c"]}), "fail", "RW101", "node-c came, but fell silent", "c"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BETWEEN_HOSTS)
def test_a_fault_is_named_and_placed(fault: str) -> None:
    assert_told("roll-call", BETWEEN_HOSTS[fault])
