"""`gpu-peers`: what has the fault is named with its host, and what looks like it and has not passes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rankwise.preflight.checks.gpu_peers import look
from tests.preflight.checks.judging import Change, assert_told_on_node_b
from tests.preflight.facts import facts_of

HEALTHY = {"gpus": 2, "blocked": []}

ON_ONE_HOST: dict[str, tuple[Change, str, str, str]] = {
    "no peer access": (lambda job: facts_of(job, 1, "gpu-peers").update(blocked=[[0, 1]]), "warn", "RW634", "0→1"),
}  # fmt: skip


@pytest.mark.parametrize("fault", ON_ONE_HOST)
def test_a_fault_is_named_on_its_host(fault: str) -> None:
    assert_told_on_node_b("gpu-peers", ON_ONE_HOST[fault])


@pytest.mark.parametrize(
    ("torch", "seen"),
    [
        ({"gpus": 2, "no_peer_access": [[0, 1]]}, {"gpus": 2, "blocked": [[0, 1]]}),
        ({"gpus": 1}, {"blind": "1 GPU that torch can use: there is no pair"}),
        ({}, {"blind": "no GPU that torch can use: there is no pair"}),
        ({"error": "cannot be imported"}, {"blind": "cannot be imported"}),
    ],
)
def test_looks_at_pairs_where_torch_has_two_gpus(torch: dict[str, Any], seen: dict[str, Any]) -> None:
    here: Any = SimpleNamespace(torch=SimpleNamespace(facts=lambda _: torch), patience_s=lambda: 1.0)

    assert look(here) == seen
