"""The hosts of a check in their order, and the commands one host runs for another."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rankwise.preflight.meeting_listener import RemoteHost
from rankwise.preflight.members import Agent, in_order


def agent(**facts: Any) -> Agent:
    torch = SimpleNamespace(ask=lambda command, limit_s: {"asked": command["do"], "limit_s": limit_s})
    here: Any = SimpleNamespace(name="head", ranks=2, torch=torch, seconds_left=lambda: 20.0)
    return Agent(here, None, lambda: facts)


def remote(name: Any, arrived_at: float, node_rank: int | None = None, **hello: Any) -> RemoteHost:
    return RemoteHost(None, {"name": name, "told": {"node_rank": node_rank}, **hello}, "10.0.0.2", arrived_at)  # type: ignore[arg-type]


def test_the_first_host_leads_then_ranks_then_who_came_first() -> None:
    others = [remote("d", 103), remote("c", 102), remote("b", 104, 2), remote("a", 105, 1)]

    assert [member.name for member in in_order(agent(), {}, others, 100.0)] == ["head", "a", "b", "c", "d"]


def test_hosts_of_the_same_name_get_a_number() -> None:
    names = [member.name for member in in_order(agent(), {}, [remote("head", 101), remote("b", 102)], 100.0)]

    assert names == ["head#0", "head#1", "b"]


def test_who_searched_long_did_not_start_late() -> None:
    others = [remote("a", 110.0, 1, searched_s=12.0), remote("b", 107.0, 2), remote("c", 101.0, 3, searched_s="long")]

    assert [member.started_s for member in in_order(agent(), {}, others, 100.0)] == [2.0, 0.0, 9.0, 3.0]


def test_what_a_host_says_it_tried_is_only_taken_where_it_is_sound() -> None:
    good, bad = in_order(agent(), {}, [remote("a", 101, 1, tries={"x": 1}), remote("b", 102, 2, tries="x")], 100.0)[1:]

    assert good.options == {"node_rank": 1, "tries": {"x": 1}}
    assert bad.options["tries"] == {}


def test_facts_are_told_with_the_ranks_of_the_host() -> None:
    assert agent(disk={"free": 1}).do({"do": "facts", "token": "00"}) == {"facts": {"disk": {"free": 1}}, "offer": {}, "ranks": 2}


@pytest.mark.parametrize(("limit", "wanted"), [(5, 15.0), (30, 20.0)])
def test_a_collective_has_no_more_time_than_the_check(limit: int, wanted: float) -> None:
    assert agent().do({"do": "collective", "limit_s": limit}) == {"asked": "collective", "limit_s": wanted}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ({"do": "x" * 50}, f"unknown command '{'x' * 40}'"),
        ({}, "unknown command 'None'"),
        ({"do": ["facts"]}, "unknown command"),
        ({"do": "facts"}, "KeyError"),
        ({"do": "facts", "token": "no hex"}, "ValueError"),
        ({"do": "facts", "token": 7}, "TypeError"),
        ({"do": "collective", "limit_s": None}, "TypeError"),
    ],
)
def test_a_command_that_makes_no_sense_is_answered_with_an_error(command: dict[str, Any], said: str) -> None:
    answer = agent().do(command)

    assert list(answer) == ["error"] and answer["error"].startswith(said)
