"""The host that leads a check: whom it lets in, how long it waits, and what it says meanwhile."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from rankwise.preflight.conduct import Meeting, admit_hosts
from rankwise.preflight.job_options import CheckPlan
from rankwise.preflight.wire import token_of

TOLD = {"nnodes": 2, "node_rank": 1, "nproc": "1", "master": "head", "port": 1}
HELLO = {"name": "b", "told": TOLD, "token": token_of("job")}


def test_a_host_of_this_job_is_let_in() -> None:
    strangers: list[dict[str, str]] = []
    greet = admit_hosts("job", strangers)

    assert greet(HELLO, "10.0.0.1") is None
    assert greet({**HELLO, "told": {**TOLD, "node_rank": None}}, "10.0.0.1") is None
    assert greet({**HELLO, "is_question": True}, "10.0.0.1") == {"is_led": True}
    assert strangers == []


def test_a_host_of_another_job_is_refused_and_remembered() -> None:
    strangers: list[dict[str, str]] = []

    answer = admit_hosts("another", strangers)({**HELLO, "name": "n" * 200}, "10.0.0.1")

    assert "another --rdzv-id" in (answer or {})["refusal"]
    assert strangers == [{"name": "n" * 100, "address": "10.0.0.1"}]


@pytest.mark.parametrize(
    "hello",
    [
        {"told": TOLD},
        {"name": 7, "told": TOLD},
        *({"name": "b", "told": told} for told in (None, [], {}, {"nnodes": "2"})),
        *({"name": "b", "told": {**TOLD, key: []}} for key in TOLD),
        *({"name": "b", "told": {name: value for name, value in TOLD.items() if name != key}} for key in TOLD if key != "node_rank"),
    ],
    ids=str,
)
def test_a_hello_that_makes_no_sense_is_refused(hello: dict[str, Any]) -> None:
    strangers: list[dict[str, str]] = []
    greet = admit_hosts("none", strangers)

    assert "not understood" in (greet({**hello, "token": token_of("none")}, "10.0.0.1") or {})["refusal"]
    assert strangers == []


def meeting(nodes: int, left_s: float = 100.0, node_rank: int | None = 0) -> Meeting:
    here = SimpleNamespace(plan=CheckPlan(nodes_max=nodes, wait_s=30.0), seconds_left=lambda: left_s)
    agent: Any = SimpleNamespace(here=here)
    return Meeting(agent, {"node_rank": node_rank}, None, [], lambda text: None)  # type: ignore[arg-type]


def other(node_rank: int | None = 1, nnodes: int = 3, ago_s: float = 0.0) -> Any:
    return SimpleNamespace(hello={"told": {"nnodes": nnodes, "node_rank": node_rank}}, ago_s=ago_s)


@pytest.mark.parametrize(
    ("others", "began_s_ago", "left_s", "is_enough"),
    [
        ([other()], 0, 100, False),
        ([other(1), other(2)], 0, 100, True),
        ([], 0, 100, False),
        ([], 31, 100, True),
        ([], 29, 100, False),
        ([], 0, 4, True),
        ([other(nnodes=2)], 10, 100, False),  # it has only just come
        ([other(nnodes=2, ago_s=4)], 10, 100, True),
        ([other(nnodes=2, ago_s=4), other(2)], 10, 100, True),
        ([other(ago_s=10)], 10, 100, False),  # they agree, and wait
    ],
)
def test_hosts_are_waited_for_as_long_as_more_may_come(others: list[Any], began_s_ago: float, left_s: float, is_enough: bool) -> None:
    for remote in others:  # now, for the parameters are made long before
        remote.arrived_at = time.monotonic() - remote.ago_s

    assert meeting(3, left_s)._is_enough(others, time.monotonic() - began_s_ago) is is_enough


@pytest.mark.parametrize(
    ("others", "node_rank", "text"),
    [
        ([other(1), other(3)], 0, "3 of 4 hosts are here, waiting for node 2, 14 s"),
        ([], 0, "1 of 4 hosts are here, waiting for node 1, 2, 3, 14 s"),
        ([other(None)], 0, "2 of 4 hosts are here, 14 s"),
        ([other(None)], None, "2 of 4 hosts are here, 14 s"),
    ],
)
def test_who_is_waited_for_is_told_where_hosts_have_numbers(others: list[Any], node_rank: int | None, text: str) -> None:
    assert meeting(4, node_rank=node_rank)._waiting_text(others, 14.2) == text
