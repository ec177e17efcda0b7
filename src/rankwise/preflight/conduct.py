"""The meeting's host: waits for the others, then leads all of them through the measurements and gathers what they saw."""

from __future__ import annotations

import secrets
import socket
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from rankwise.preflight.agent import Agent
from rankwise.preflight.door import Door, Guest
from rankwise.preflight.job import Facts, Host, Job, Link
from rankwise.preflight.measured import is_explained
from rankwise.preflight.pairing import Pair, rounds_for, second_look
from rankwise.preflight.probes import TOKEN_BYTES
from rankwise.preflight.wire import Message, token_of

_BEAT_S = 1.0
_SETTLE_S = 3.0  # where the hosts disagree about their number: so long after the last one came
_CLOCK_ASKS = 5
_KNOCK_S, _LINK_S, _COLLECTIVE_S = 20.0, 20.0, 25.0
_FACTS_LEAST_S = 30.0
_NEED_KNOCKS = {"names", "ports", "links", "collectives"}

Say = Callable[[str], None]


@dataclass
class Member:
    """One host of the meeting, here or elsewhere; asked the same way."""

    name: str
    told: dict[str, Any]
    arrived_s: float
    ask: Callable[[Message, float], Message | None]
    guest: Guest | None = None
    facts: dict[str, Facts] = field(default_factory=dict)
    offer: dict[str, Any] = field(default_factory=dict)


class Meeting:
    """Led by the host at the rendezvous address."""

    def __init__(self, agent: Agent, told: dict[str, Any], door: Door, strangers: list[dict[str, str]], say: Say) -> None:
        self._agent, self._told, self._door, self._strangers, self._say_here = agent, told, door, strangers, say
        self._plan = agent.here.plan
        self._token = secrets.token_hex(TOKEN_BYTES)
        self._members: list[Member] = []
        self._waited_s = 0.0

    def gather(self, started: float) -> None:
        """Wait until all are here, or for as long as the plan says."""
        deadline = started + self._plan.wait_s
        told_at = 0.0
        while True:
            guests, now = self._door.guests(), time.monotonic()
            if len(guests) + 1 >= self._plan.nodes_max or now > deadline or self._agent.here.seconds_left() < 5:
                break
            if self._disagree(guests) and now > max(guest.arrived_at for guest in guests) + _SETTLE_S:
                break
            if now > told_at + _BEAT_S:
                told_at = now
                self._say(self._waiting_text(guests, now - started), guests)
            time.sleep(0.05)
        self._waited_s = time.monotonic() - started
        self._door.close()
        self._members = self._seated(self._door.guests(), started)

    def measure(self) -> Job:
        """Everything that takes more than one host, step by step; a host that does not answer any more is left out of what follows."""
        self._say("gathering what each host sees of itself")
        self._ask_for_facts()
        offsets = {member.name: found for member in self._members if (found := self._clock_of(member))}
        able = [member for member in self._members if member.offer]
        knocks = self._knock(able) if _NEED_KNOCKS & set(self._plan.only) else {}
        links = self._measure_links(able, knocks) if "links" in self._plan.only else []
        hosts = tuple(self._host(node, member) for node, member in enumerate(self._members))
        job = Job(self._plan, hosts, tuple(links), knocks, offsets, meeting=self._facts())
        return replace(job, collective=self._collective(job)) if "collectives" in self._plan.only else job

    def tell(self, report: dict[str, Any]) -> None:
        for member in self._members:
            if member.guest is not None:
                member.guest.tell({"report": report})
                member.guest.leave()

    # -- who is here ----------------------------------------------------------------------------------------------------------

    def _disagree(self, guests: list[Guest]) -> bool:
        """About their number: then some wait for hosts that nobody will start."""
        return any(guest.hello.get("told", {}).get("nnodes") != self._plan.nodes_max for guest in guests)

    def _waiting_text(self, guests: list[Guest], waited_s: float) -> str:
        here = {self._told.get("node_rank"), *(guest.hello.get("told", {}).get("node_rank") for guest in guests)}
        lost = [str(rank) for rank in range(self._plan.nodes_max) if rank not in here]
        whom = f", waiting for node {', '.join(lost[:8])}" if None not in here and lost else ""
        return f"{len(guests) + 1} of {self._plan.nodes_max} hosts are here{whom}, {waited_s:.0f} s"

    def _seated(self, guests: list[Guest], started: float) -> list[Member]:
        """Node 0 first, then by node rank, then by arrival; hosts of the same name get a number."""

        def order(guest: Guest) -> tuple[int, float]:
            rank = guest.hello["told"].get("node_rank")
            return (rank if isinstance(rank, int) else 1 << 30, guest.arrived_at)

        members = [Member(self._agent.here.name, self._told, 0.0, lambda message, _: self._agent.do(message))]
        for guest in sorted(guests, key=order):
            tries = guest.hello.get("tries")
            told = {**guest.hello["told"], "tries": tries if isinstance(tries, dict) else {}}
            members.append(Member(str(guest.hello["name"])[:100], told, max(0.0, guest.arrived_at - started), guest.ask, guest))
        names = [member.name for member in members]
        for i, member in enumerate(members):
            if names.count(member.name) > 1:
                member.name = f"{member.name}#{i}"
        return members

    def _host(self, node: int, member: Member) -> Host:
        return Host(member.name, node, member.facts, member.told, member.arrived_s, str(member.offer.get("address", "")))

    def _facts(self) -> Facts:
        gone = [member.name for member in self._members if member.guest is not None and member.guest.is_gone]
        return {"is_host": True, "waited_s": self._waited_s, "strangers": self._strangers, "gone": gone}

    # -- what they measure ----------------------------------------------------------------------------------------------------

    def _ask_all(self, commands: Mapping[str, Message], timeout_s: float) -> dict[str, Message]:
        """All at once; no entry for who did not answer."""
        limit_s = max(1.0, min(timeout_s, self._agent.here.seconds_left()))
        asked = [member for member in self._members if member.name in commands]
        if not asked:
            return {}
        with ThreadPoolExecutor(len(asked)) as pool:
            answers = list(pool.map(lambda member: member.ask(commands[member.name], limit_s), asked))
        return {member.name: answer for member, answer in zip(asked, answers) if answer is not None and "error" not in answer}

    def _ask_for_facts(self) -> None:
        command = {"do": "facts", "token": self._token}
        left = max(_FACTS_LEAST_S, self._agent.here.seconds_left() / 2)
        answers = self._ask_all({member.name: command for member in self._members}, left)
        for member in self._members:
            answer = answers.get(member.name, {})
            facts, offer = answer.get("facts"), answer.get("offer")
            member.facts = {str(name): found for name, found in facts.items() if isinstance(found, dict)} if isinstance(facts, dict) else {}
            member.offer = {**offer, "mtu": member.facts.get("interface", {}).get("mtu")} if isinstance(offer, dict) and offer else {}
            member.told["nproc"] = answer.get("ranks", member.told.get("nproc"))

    def _clock_of(self, member: Member) -> tuple[float, float] | None:
        """Offset against this host's clock, and the error of that: half of the quickest round trip."""
        best: tuple[float, float] | None = None
        for _ in range(_CLOCK_ASKS):
            before = time.time()
            answer = member.ask({"do": "clock"}, 10.0)
            after = time.time()
            if answer is None or not isinstance(answer.get("now"), int | float):
                return None
            offset, error = float(answer["now"]) - (before + after) / 2, (after - before) / 2
            if best is None or error < best[1]:
                best = (offset, error)
        return best

    def _knock(self, able: list[Member]) -> dict[str, dict[str, Facts]]:
        self._say(f"knocking at the ports of {len(able)} hosts")
        offers = {member.name: member.offer for member in able}
        commands = {
            name: {"do": "knock", "token": self._token, "peers": {other: offer for other, offer in offers.items() if other != name}}
            for name in offers
        }
        answers = self._ask_all(commands, _KNOCK_S) if len(able) > 1 else {}
        return {name: answer["answers"] for name, answer in answers.items() if isinstance(answer.get("answers"), dict)}

    def _measure_links(self, able: list[Member], knocks: dict[str, dict[str, Facts]]) -> list[Link]:
        """Round by round, pairs that share no host at once; then the suspects once more with hosts beyond suspicion."""
        names = [member.name for member in able]
        rounds = rounds_for(names) if len(names) > 1 else []
        links: list[Link] = []
        for number, pairs in enumerate(rounds, 1):
            self._say(f"measuring links, round {number} of {len(rounds)}")
            links += self._measure_round(pairs, able, knocks)
        if sum(map(len, rounds)) < len(names) * (len(names) - 1) // 2:
            bad = [link for link in links if _is_suspicious(link.facts, links)]
            good = [link for link in links if link not in bad]
            for pairs in second_look(names, [(k.source, k.target) for k in good], [(k.source, k.target) for k in bad]):
                self._say("measuring the suspects once more, with other partners")
                links += self._measure_round(pairs, able, knocks)
        return links

    def _measure_round(self, pairs: list[Pair], able: list[Member], knocks: dict[str, dict[str, Facts]]) -> list[Link]:
        offers = {member.name: member.offer for member in able}
        directed = [pair for pair in (_open_way(pair, knocks) for pair in pairs) if pair is not None]
        commands = {source: {"do": "link", "token": self._token, "peer": offers[target]} for source, target in directed}
        answers = self._ask_all(commands, _LINK_S)
        return [Link(source, target, answers[source]["facts"]) for source, target in directed if "facts" in answers.get(source, {})]

    # -- what they do together ------------------------------------------------------------------------------------------------

    def _collective(self, job: Job) -> Facts:
        """One rank per host, if nothing that was seen so far makes it fail anyway."""
        if len(job.hosts) < 2:
            return {"blind": "there is no other host"}
        if why := _why_no_collective(job):
            return {"blind": why}
        found: Facts = {}
        for backend in ("gloo", "nccl"):
            if backend == "nccl" and not all(host.of("gpu-count").get("seen_by_torch") for host in job.hosts):
                continue
            self._say(f"trying collectives on {backend}")
            command = {"do": "collective", "backend": backend, "world_size": len(job.hosts), "limit_s": _COLLECTIVE_S}
            place = {"host": job.hosts[0].address, "port": _free_port(job.hosts[0].address)}
            answers = self._answers({host.name: {**command, **place, "rank": rank} for rank, host in enumerate(job.hosts)})
            found[backend] = {host.name: answers.get(host.name) or {"error": "no answer"} for host in job.hosts}
        return found

    def _answers(self, commands: Mapping[str, Message]) -> dict[str, Message]:
        """As `_ask_all`, but an error is an answer too."""
        results: dict[str, Message] = {}

        def ask(member: Member) -> None:
            answer = member.ask(commands[member.name], _COLLECTIVE_S + 15.0)
            if answer is not None:
                results[member.name] = answer

        threads = [threading.Thread(target=ask, args=(member,), daemon=True) for member in self._members if member.name in commands]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_COLLECTIVE_S + 20.0)
        return results

    def _say(self, text: str, guests: list[Guest] | None = None) -> None:
        self._say_here(text)
        listening = guests if guests is not None else [member.guest for member in self._members if member.guest is not None]
        for guest in listening:
            guest.tell({"progress": text})


def greet_guests(job_id: str, strangers: list[dict[str, str]]) -> Callable[[Message, str], Message | None]:
    """Lets in who belongs to this job and says who it is; notes who belongs to another."""
    token = token_of(job_id)

    def greet(hello: Message, address: str) -> Message | None:
        if not isinstance(hello.get("told"), dict) or not isinstance(hello.get("name"), str):
            return {"refusal": "the hello was not understood: is it the same version of rankwise?"}
        if hello.get("token") != token:
            strangers.append({"name": hello["name"][:100], "address": address})
            return {"refusal": "another --rdzv-id is used there: torchrun keeps jobs with different ids apart"}
        return {"is_led": True} if hello.get("is_question") else None

    return greet


def _is_suspicious(facts: Facts, links: list[Link]) -> bool:
    rates = [min(link.facts["up"], link.facts["down"]) for link in links if link.facts.get("up") is not None]
    if not facts.get("connected") or is_explained(facts) or facts.get("up") is None:
        return True
    return bool(min(facts["up"], facts["down"]) < statistics.median(rates) / 4)


def _open_way(pair: Pair, knocks: dict[str, dict[str, Facts]]) -> Pair | None:
    """The direction in which a connection can be opened; None where there is none."""
    for source, target in (pair, pair[::-1]):
        if knocks.get(source, {}).get(target, {}).get("high"):
            return source, target
    return None


def _why_no_collective(job: Job) -> str:
    if any(not answer.get("high") for row in job.knocks.values() for answer in row.values()):
        return "not all hosts reach each other's high ports"
    if any(not answer.get("gloo") for row in job.knocks.values() for answer in row.values()):
        return "not all hosts reach the address that gloo offers"
    if any(is_explained(link.facts) for link in job.links):
        return "a link is in such a state that it would only show that"
    if any(host.of("versions").get("error") for host in job.hosts):
        return "torch cannot be imported on every host"
    if not all(host.address for host in job.hosts):
        return "not all hosts could be measured"
    return ""


def _free_port(address: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
