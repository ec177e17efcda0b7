"""The host that leads a check of several hosts: waits for the others, has everything measured, and sends all of them the report."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rankwise.meet.roster import missing_numbers
from rankwise.preflight.facts import CheckedJob, Facts, Host
from rankwise.preflight.meeting_listener import MeetingListener, RemoteHost
from rankwise.preflight.members import Agent, Member, in_order
from rankwise.preflight.survey import Survey
from rankwise.preflight.wire import Message, token_of

_BEAT_S = 1.0
_SETTLE_S = 3.0  # how long to wait after the last host came, where hosts disagree about their number
_LEAST_LEFT_S = 5.0
_NEED_REACHED = {"names", "ports", "links", "collectives"}

Say = Callable[[str], None]


class Meeting:
    """A check of several hosts, led by the host at the rendezvous address."""

    def __init__(self, agent: Agent, options: dict[str, Any], listener: MeetingListener, strangers: list[dict[str, str]], say: Say) -> None:
        self._agent, self._options, self._listener, self._strangers, self._say_here = agent, options, listener, strangers, say
        self._plan = agent.here.plan
        self._members: list[Member] = []
        self._waited_s = 0.0

    def gather(self, began: float) -> None:
        """Wait until all hosts are here, or as long as the plan says."""
        told_at = 0.0
        while not self._is_enough(others := self._listener.hosts(), began):
            if time.monotonic() > told_at + _BEAT_S:
                told_at = time.monotonic()
                text = self._waiting_text(others, told_at - began)
                self._say_here(text)
                for remote in others:
                    remote.tell({"progress": text})
            time.sleep(0.05)
        self._waited_s = time.monotonic() - began
        self._listener.close()
        self._members = in_order(self._agent, self._options, self._listener.hosts(), began)

    def measure(self) -> CheckedJob:
        """Gather what each host sees of itself, then measure what takes several hosts."""
        survey, groups = Survey(self._members, self._agent.here.seconds_left, self._say_here), set(self._plan.only)
        survey.ask_for_facts()
        offsets = survey.clocks()
        reached = survey.probe_ports() if _NEED_REACHED & groups else {}
        links = survey.measure_links(reached) if "links" in groups else []
        hosts = tuple(
            Host(member.name, node, member.facts, member.options, member.started_s, str(member.offer.get("address", "")))
            for node, member in enumerate(self._members)
        )
        job = CheckedJob(self._plan, hosts, tuple(links), reached, offsets, meeting=self._facts())
        return replace(job, collective=survey.collective(job)) if "collectives" in groups else job

    def tell(self, report: dict[str, Any]) -> None:
        for member in self._members:
            if member.remote is not None:
                member.remote.tell({"report": report})
                member.remote.leave()

    def _is_enough(self, others: list[RemoteHost], began: float) -> bool:
        now = time.monotonic()
        if len(others) + 1 >= self._plan.nodes_max or now > began + self._plan.wait_s:
            return True
        # Where hosts disagree about their number, some wait for hosts that will never be started.
        disagree = any(remote.hello["told"].get("nnodes") != self._plan.nodes_max for remote in others)
        is_settled = disagree and now > max(remote.arrived_at for remote in others) + _SETTLE_S
        return is_settled or self._agent.here.seconds_left() < _LEAST_LEFT_S

    def _waiting_text(self, others: list[RemoteHost], waited_s: float) -> str:
        """`2 of 4 hosts are here, waiting for node 1, 3, 14 s`."""
        here = {self._options.get("node_rank"), *(remote.hello["told"].get("node_rank") for remote in others)}
        lost = missing_numbers(here, self._plan.nodes_max)
        whom = f", waiting for node {', '.join(map(str, lost[:8]))}" if None not in here and lost else ""
        return f"{len(others) + 1} of {self._plan.nodes_max} hosts are here{whom}, {waited_s:.0f} s"

    def _facts(self) -> Facts:
        gone = [member.name for member in self._members if member.remote is not None and member.remote.is_gone]
        return {"is_host": True, "waited_s": self._waited_s, "strangers": self._strangers, "gone": gone}


def admit_hosts(job_id: str, strangers: list[dict[str, str]]) -> Callable[[Message, str], Message | None]:
    """Lets in the hosts of this job; notes hosts that belong to another job."""
    token = token_of(job_id)

    def greet(hello: Message, address: str) -> Message | None:
        if not isinstance(hello.get("name"), str) or not _is_sound(hello.get("told")):
            return {"refusal": "the hello was not understood: is it the same version of rankwise?"}
        if hello.get("token") != token:
            strangers.append({"name": hello["name"][:100], "address": address})
            return {"refusal": "another --rdzv-id is used there: torchrun keeps jobs with different ids apart"}
        return {"is_led": True} if hello.get("is_question") else None

    return greet


def _is_sound(options: object) -> bool:
    """Whether a host's options have the keys and types that we rely on."""
    if not isinstance(options, dict):
        return False
    kinds = {"nnodes": int, "node_rank": int | None, "master": str, "port": int, "nproc": str}
    return all(isinstance(options.get(key), kind) for key, kind in kinds.items())
