"""`rendezvous-port`: what has the fault is named with its host, and what looks like it and has not passes."""

from __future__ import annotations

import pytest

from tests.preflight.checks.judging import Change, Fault, assert_told, assert_told_on_node_b, told
from tests.preflight.facts import facts_of

HEALTHY = {"port": 29500, "opens": False, "free": True, "reached": "", "error": "", "holders": []}

ON_ONE_HOST: dict[str, tuple[Change, str, str, str]] = {
    "port held": (
        lambda job: facts_of(job, 1, "rendezvous-port").update(
            opens=True, free=False, error="EADDRINUSE", holders=[{"pid": 42, "program": "nginx", "user": "www", "command": "nginx -g x"}]
        ),
        "fail", "RW107", "held by nginx (pid 42, user www: nginx -g x)",
    ),
    "port held by somebody unseen": (
        lambda job: facts_of(job, 1, "rendezvous-port").update(opens=True, free=False, error="EADDRINUSE"),
        "fail", "RW107", "may not look at",
    ),
    "port not allowed": (
        lambda job: facts_of(job, 1, "rendezvous-port").update(opens=True, free=False, error="EACCES"),
        "fail", "RW602", "may not open port 29500",
    ),
}  # fmt: skip
BETWEEN_HOSTS: dict[str, Fault] = {
    "master port blocked": (told(b={"tries": {"29500": "no answer", "29501": "met"}}), "fail", "RW111", "node-b cannot reach the rendezvous port node-a:29500", "b"),
}  # fmt: skip


@pytest.mark.parametrize("fault", ON_ONE_HOST)
def test_a_fault_is_named_on_its_host(fault: str) -> None:
    assert_told_on_node_b("rendezvous-port", ON_ONE_HOST[fault])


@pytest.mark.parametrize("fault", BETWEEN_HOSTS)
def test_a_fault_is_named_and_placed(fault: str) -> None:
    assert_told("rendezvous-port", BETWEEN_HOSTS[fault])
