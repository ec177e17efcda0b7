"""The steps that take several hosts: facts, clocks, ports, links, collectives. A host that does not answer is left out of later steps."""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from rankwise.meet.links import Pair
from rankwise.meet.ports import free_port
from rankwise.meet.threads import run_all
from rankwise.preflight.facts import CheckedJob, Facts, Link
from rankwise.preflight.link_speed import LINK_NUMBERS
from rankwise.preflight.measured import is_explained, rate_of
from rankwise.preflight.members import Member
from rankwise.preflight.probes import TOKEN_BYTES
from rankwise.preflight.wire import Message

_CLOCK_ASKS = 5
_CLOCK_S, _KNOCK_S, _LINK_S, _COLLECTIVE_S = 10.0, 20.0, 20.0, 25.0
_GRACE_S = 5.0
_FACTS_S = 3600.0  # as long as the time limit allows: --fit may take all of it

Reached = dict[str, dict[str, Facts]]
_ALL_PAIRS_UP_TO = 8  # hosts; beyond that two rounds and a third for the suspects take the place of all pairs


class Survey:
    """Measures a set of hosts; the token opens their probes. A host that does not answer in time is gone, and not asked again."""

    def __init__(self, members: list[Member], seconds_left: Callable[[], float], say: Callable[[str], None]) -> None:
        self._members, self._seconds_left, self._say_here = members, seconds_left, say
        self._token = secrets.token_hex(TOKEN_BYTES)

    def ask_for_facts(self) -> None:
        self._say("gathering what each host sees of itself")
        command = {"do": "facts", "token": self._token}
        answers = self._ask_all({member.name: command for member in self._members}, _FACTS_S)
        for member in self._members:
            answer = answers.get(member.name, {})
            facts, offer = answer.get("facts"), answer.get("offer")
            member.facts = {str(name): found for name, found in facts.items() if isinstance(found, dict)} if isinstance(facts, dict) else {}
            member.offer = {**offer, "mtu": member.facts.get("interface", {}).get("mtu")} if isinstance(offer, dict) and offer else {}
            member.options["nproc"] = answer.get("ranks", member.options.get("nproc"))

    def clocks(self) -> dict[str, tuple[float, float]]:
        """Each host's clock relative to ours, and the error of that."""
        return {member.name: found for member in self._members if (found := _clock_of(member))}

    def probe_ports(self) -> Reached:
        """Every host at every other host's ports; all at once."""
        offers = self._offers()
        self._say(f"trying the ports of {len(offers)} hosts")
        commands = {
            name: {"do": "probe_ports", "token": self._token, "peers": {other: offer for other, offer in offers.items() if other != name}}
            for name in offers
        }
        answers = self._ask_all(commands, _KNOCK_S) if len(offers) > 1 else {}
        tables = {name: answer["answers"] for name, answer in answers.items() if isinstance(answer.get("answers"), dict)}
        return {name: {to: how for to, how in table.items() if isinstance(how, dict) and "high" in how} for name, table in tables.items()}

    def measure_links(self, reached: Reached) -> list[Link]:
        """Round by round, pairs that share no host at once; then, where not all pairs were measured, the suspects once more."""
        names = list(self._offers())
        rounds = rounds_for(names) if len(names) > 1 else []
        links: list[Link] = []
        for number, pairs in enumerate(rounds, 1):
            self._say(f"measuring links, round {number} of {len(rounds)}")
            links += self._measure_round(pairs, reached)
        if sum(map(len, rounds)) < len(names) * (len(names) - 1) // 2:
            bad = [link for link in links if _is_suspicious(link.facts, links)]
            good = [(link.source, link.target) for link in links if link not in bad]
            for pairs in second_look(names, good, [(link.source, link.target) for link in bad]):
                self._say("measuring the suspects once more, with other partners")
                links += self._measure_round(pairs, reached)
        return links

    def collective(self, job: CheckedJob) -> Facts:
        """Run a small job with one rank per host, unless what was seen so far shows that it would fail."""
        if why := _why_no_collective(job):
            return {"blind": why}
        found: Facts = {}
        for backend in ("gloo", "nccl"):
            if backend == "nccl" and not all(host.of("gpu-count").get("seen_by_torch") for host in job.hosts):
                continue
            self._say(f"trying collectives on {backend}")
            command = {"do": "collective", "backend": backend, "world_size": len(job.hosts), "limit_s": _COLLECTIVE_S}
            command |= {"host": job.hosts[0].address, "port": free_port(job.hosts[0].address)}
            answers = self._ask_all({host.name: {**command, "rank": rank} for rank, host in enumerate(job.hosts)}, 2 * _COLLECTIVE_S)
            found[backend] = {host.name: answers.get(host.name) or {"error": "no answer"} for host in job.hosts}
        return found

    def _say(self, text: str) -> None:
        self._say_here(text)
        for member in self._members:
            if member.remote is not None:
                member.remote.tell({"progress": text})

    def _ask_all(self, commands: Mapping[str, Message], timeout_s: float) -> dict[str, Message]:
        """Ask the named hosts, all at once; a host that does not answer has no entry. An answer may be an `error`."""
        limit_s = max(1.0, min(timeout_s, self._seconds_left()))
        asks = {member.name: partial(member.ask, commands[member.name], limit_s) for member in self._members if member.name in commands}
        return run_all(asks, limit_s + _GRACE_S)

    def _offers(self) -> dict[str, dict[str, object]]:
        return {member.name: member.offer for member in self._members if member.offer}

    def _measure_round(self, pairs: list[Pair], reached: Reached) -> list[Link]:
        offers = self._offers()
        directed = [pair for pair in (_open_way(pair, reached) for pair in pairs) if pair is not None]
        commands = {source: {"do": "link", "token": self._token, "peer": offers[target]} for source, target in directed}
        answers = self._ask_all(commands, _LINK_S)
        found = ((source, target, answers.get(source, {}).get("facts")) for source, target in directed)
        return [Link(source, target, _sound_link(facts)) for source, target, facts in found if isinstance(facts, dict)]


def _sound_link(facts: Facts) -> Facts:
    """The facts of a link that are numbers, because another host may send anything."""
    numbers = {key: value for key in LINK_NUMBERS if isinstance(value := facts.get(key), int | float)}
    together = ({"lost_out", "lost_back"}, {"largest", "wanted"}, {"up", "down"})
    whole = {key: value for key, value in numbers.items() if all(key not in group or group <= numbers.keys() for group in together)}
    return whole | {"error": str(facts.get("error", ""))[:200]}


def _clock_of(member: Member) -> tuple[float, float] | None:
    """Offset against this host's clock, and the error of that: half of the quickest round trip."""
    best: tuple[float, float] | None = None
    for _ in range(_CLOCK_ASKS):
        before = time.time()
        answer = member.ask({"do": "clock"}, _CLOCK_S)
        after = time.time()
        if answer is None or not isinstance(answer.get("now"), int | float):
            return None
        offset, error = float(answer["now"]) - (before + after) / 2, (after - before) / 2
        if best is None or error < best[1]:
            best = (offset, error)
    return best


def _is_suspicious(facts: Facts, links: list[Link]) -> bool:
    rates = [rate_of(link.facts) for link in links if link.facts.get("up") is not None]
    return is_explained(facts) or facts.get("up") is None or rate_of(facts) < statistics.median(rates) / 4


def _open_way(pair: Pair, reached: Reached) -> Pair | None:
    """The direction in which a connection can be opened; None where there is none."""
    for source, target in (pair, pair[::-1]):
        if reached.get(source, {}).get(target, {}).get("high"):
            return source, target
    return None


def _why_no_collective(job: CheckedJob) -> str:
    """The fault already seen that would make the collective fail; empty if there is none."""
    answers = [answer for row in job.reached.values() for answer in row.values()]
    reasons = (
        (len(job.hosts) < 2, "there is no other host"),
        (not all(host.address for host in job.hosts), "not all hosts could be measured"),
        (not all(answer.get("high") for answer in answers), "not all hosts reach each other's high ports"),
        (not all(answer.get("gloo") for answer in answers), "not all hosts reach the address that gloo offers"),
        (any(is_explained(link.facts) for link in job.links), "a link is in such a state that it would only show that"),
        (any(host.of("versions").get("error") for host in job.hosts), "torch cannot be imported on every host"),
    )
    return next((why for is_so, why in reasons if is_so), "")


def rounds_for(names: list[str]) -> list[list[Pair]]:
    """Rounds of pairs that do not share a host, so that they can be measured at once. Every pair for few hosts, two rounds for many."""
    rounds = _tournament(names)
    return rounds if len(names) <= _ALL_PAIRS_UP_TO else rounds[:2]


def second_look(names: list[str], good: Iterable[Pair], bad: Iterable[Pair]) -> list[list[Pair]]:
    """Pairs of each suspect with a host beyond suspicion that have not met: they show whether a node or a link is bad."""
    good, bad = list(good), list(bad)
    suspects = [name for name in names if any(name in pair for pair in bad)]
    met = {frozenset(pair) for pair in [*good, *bad]}
    trusted = [name for name in names if name not in suspects and any(name in pair for pair in good)]
    found: list[list[Pair]] = []
    for suspect in suspects:
        partner = next((name for name in trusted if frozenset((suspect, name)) not in met), None)
        if partner is None:
            continue
        pair = (partner, suspect)
        free = next((some for some in found if not any(set(other) & set(pair) for other in some)), None)
        if free is None:
            found.append([pair])
        else:
            free.append(pair)
    return found


def _tournament(names: list[str]) -> list[list[Pair]]:
    """Every pair of hosts, by the circle method of tournaments: one host stays, the others move on by one place."""
    order: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    rounds = []
    for _ in range(len(order) - 1):
        half = len(order) // 2
        pairs = zip(order[:half], reversed(order[half:]))
        rounds.append([(a, b) for a, b in pairs if a is not None and b is not None])
        order = [order[0], order[-1], *order[1:-1]]
    return rounds
