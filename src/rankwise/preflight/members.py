"""The hosts of a check: how each is asked, one by one or all at once, and what a host does when it is asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rankwise.preflight.job import Facts, Here, Host
from rankwise.preflight.links import measure_link, probe_ports
from rankwise.preflight.listener import RemoteHost
from rankwise.preflight.probes import Probes
from rankwise.preflight.wire import Message

_GRACE_S = 5.0


@dataclass
class Member:
    """One host: what it was told about the job, when it was started, and how to ask it."""

    name: str
    options: dict[str, Any]
    started_s: float
    ask: Callable[[Message, float], Message | None]
    remote: RemoteHost | None = None  # None for the meeting's own host
    facts: dict[str, Facts] = field(default_factory=dict)
    offer: dict[str, Any] = field(default_factory=dict)

    def as_host(self, node: int) -> Host:
        return Host(self.name, node, self.facts, self.options, self.started_s, str(self.offer.get("address", "")))


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
    """When it began to look for the meeting, by our clock: a blocked port makes it come late, but it did not start late."""
    searched = remote.hello.get("searched_s")
    return remote.arrived_at - began - (searched if isinstance(searched, int | float) else 0.0)


class Members:
    """All hosts of a check; a host that does not answer in time is gone, and is not asked again."""

    def __init__(self, members: list[Member], seconds_left: Callable[[], float], say: Callable[[str], None]) -> None:
        self.members, self._seconds_left, self._say_here = members, seconds_left, say

    def say(self, text: str) -> None:
        self._say_here(text)
        for member in self.members:
            if member.remote is not None:
                member.remote.tell({"progress": text})

    def ask_all(self, commands: Mapping[str, Message], timeout_s: float) -> dict[str, Message]:
        """Ask the named hosts, all at once; a host that does not answer has no entry. An answer may be an `error`."""
        limit_s = max(1.0, min(timeout_s, self._seconds_left()))
        answers: dict[str, Message] = {}

        def ask(member: Member) -> None:
            answer = member.ask(commands[member.name], limit_s)
            if answer is not None:
                answers[member.name] = answer

        threads = [threading.Thread(target=ask, args=(member,), daemon=True) for member in self.members if member.name in commands]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(limit_s + _GRACE_S)
        return dict(answers)


class Agent:
    """One host's hands. Commands come from another machine: each is looked up in a table, and what it asks for is bounded."""

    def __init__(self, here: Here, probes: Probes | None, look: Callable[[], dict[str, Facts]]) -> None:
        self.here, self.probes = here, probes
        self._facts: dict[str, Facts] = {}
        self._looking = threading.Thread(target=lambda: self._facts.update(look()), daemon=True, name="look-around")
        self._looking.start()

    def facts(self) -> dict[str, Facts]:
        self._looking.join(max(0.0, self.here.seconds_left()))
        return dict(self._facts)

    def do(self, command: dict[str, Any]) -> dict[str, Any]:
        doing = {
            "facts": self._tell,
            "clock": lambda _: {"now": time.time()},
            "probe_ports": self._probe_ports,
            "link": self._link,
            "collective": self._collective,
        }
        action = doing.get(str(command.get("do")))
        if action is None:
            return {"error": f"unknown command {str(command.get('do'))[:40]!r}"}
        try:
            return action(command)
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            return {"error": f"{type(error).__name__}: {error}"[:300]}

    def _tell(self, command: dict[str, Any]) -> dict[str, Any]:
        if self.probes is not None:
            self.probes.token = bytes.fromhex(command["token"])
        offer = self.probes.offer() if self.probes is not None else {}
        return {"facts": self.facts(), "offer": offer, "ranks": self.here.ranks}

    def _probe_ports(self, command: dict[str, Any]) -> dict[str, Any]:
        return {"answers": probe_ports(command["peers"], bytes.fromhex(command["token"]))}

    def _link(self, command: dict[str, Any]) -> dict[str, Any]:
        mtu = int(self._facts.get("interface", {}).get("mtu") or 1500)
        return {"facts": measure_link(command["peer"], bytes.fromhex(command["token"]), mtu)}

    def _collective(self, command: dict[str, Any]) -> dict[str, Any]:
        return self.here.torch.ask(command, min(float(command["limit_s"]) + 10.0, max(1.0, self.here.seconds_left())))
