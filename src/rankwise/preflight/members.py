"""The hosts of a check: how the leading host sends each a command, and how a host runs one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rankwise.meet.threads import ThreadTask
from rankwise.preflight.facts import Facts, Here
from rankwise.preflight.link_speed import measure_link, probe_ports
from rankwise.preflight.meeting_listener import RemoteHost
from rankwise.preflight.probes import Probes
from rankwise.preflight.wire import Message


@dataclass
class Member:
    """One host: its options, when it was started, and how to send it a command."""

    name: str
    options: dict[str, Any]
    started_s: float
    ask: Callable[[Message, float], Message | None]
    remote: RemoteHost | None = None  # None for the meeting's own host
    facts: dict[str, Facts] = field(default_factory=dict)
    offer: dict[str, Any] = field(default_factory=dict)


def in_order(agent: Agent, options: dict[str, Any], others: list[RemoteHost], began: float) -> list[Member]:
    """The members: the meeting's host first, then by node rank, then by arrival; hosts of the same name get a number."""
    members = [Member(agent.here.name, options, 0.0, lambda message, _: agent.do(message))]
    for remote in sorted(others, key=_place_in_order):
        tries = remote.hello.get("tries")
        its_plan = {**remote.hello["told"], "tries": tries if isinstance(tries, dict) else {}}
        members.append(Member(str(remote.hello["name"])[:100], its_plan, _started_s(remote, began), remote.ask, remote))
    earliest = min(member.started_s for member in members)
    names = [member.name for member in members]
    for i, member in enumerate(members):
        member.started_s -= earliest
        if names.count(member.name) > 1:
            member.name = f"{member.name}#{i}"
    return members


def _place_in_order(remote: RemoteHost) -> tuple[int, float]:
    rank = remote.hello["told"].get("node_rank")
    return (rank if isinstance(rank, int) else 1 << 30, remote.arrived_at)


def _started_s(remote: RemoteHost, began: float) -> float:
    """When the host was started, by our clock: when it began to look for the meeting, as a blocked port makes it come later."""
    searched = remote.hello.get("searched_s")
    return remote.arrived_at - began - (searched if isinstance(searched, int | float) else 0.0)


class Agent:
    """Runs commands on one host. They come from another machine, so each is looked up in a table, and what it does is bounded."""

    def __init__(self, here: Here, probes: Probes | None, look: Callable[[], dict[str, Facts]]) -> None:
        self.here, self.probes = here, probes
        self._looking = ThreadTask(look, "look-around")

    def facts(self) -> dict[str, Facts]:
        self._looking.wait(max(0.0, self.here.seconds_left()))
        return self._looking.result or {}

    def do(self, command: Message) -> Message:
        doing: dict[str, Callable[[], Message]] = {
            "facts": lambda: self._tell(bytes.fromhex(command["token"])),
            "clock": lambda: {"now": time.time()},
            "probe_ports": lambda: {"answers": probe_ports(command["peers"], bytes.fromhex(command["token"]))},
            "link": lambda: {"facts": measure_link(command["peer"], bytes.fromhex(command["token"]), self._mtu())},
            "collective": lambda: self.here.torch.ask(command, min(float(command["limit_s"]) + 10.0, max(1.0, self.here.seconds_left()))),
        }
        action = doing.get(str(command.get("do")))
        if action is None:
            return {"error": f"unknown command {str(command.get('do'))[:40]!r}"}
        try:
            return action()
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            return {"error": f"{type(error).__name__}: {error}"[:300]}

    def _tell(self, token: bytes) -> Message:
        offer = {}
        if self.probes is not None:
            self.probes.token = token
            offer = self.probes.offer()
        return {"facts": self.facts(), "offer": offer, "ranks": self.here.ranks}

    def _mtu(self) -> int:
        return int((self._looking.result or {}).get("interface", {}).get("mtu") or 1500)
