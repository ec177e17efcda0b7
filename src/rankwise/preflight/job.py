"""The facts that checks judge: hosts, what each saw of itself, and what they measured between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rankwise.findings import Finding, Place
from rankwise.preflight.plan import CheckPlan

Facts = dict[str, Any]


@dataclass(frozen=True)
class Host:
    """One host of the job: its facts by the name of the check that looked."""

    name: str
    node: int
    facts: Mapping[str, Facts] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)  # what this host was told: nnodes, node_rank, nproc, master, port
    started_s: float = 0.0
    address: str = ""

    def of(self, check: str) -> Facts:
        return self.facts.get(check) or {"blind": "this host did not look"}

    @property
    def place(self) -> Place:
        return Place(host=self.name)


@dataclass(frozen=True)
class Link:
    """What `source` measured towards `target`; `facts` as `links.measure_link` makes them."""

    source: str
    target: str
    facts: Facts


@dataclass(frozen=True)
class Job:
    """All that is known when the checks judge. `links` and `meeting` are empty for one host."""

    plan: CheckPlan
    hosts: tuple[Host, ...]
    links: tuple[Link, ...] = ()
    knocks: Mapping[str, Mapping[str, Facts]] = field(default_factory=dict)  # from host: to host: what happened
    offsets_s: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # host: its clock against node 0's, and the error of that
    collective: Facts = field(default_factory=dict)
    meeting: Facts = field(default_factory=dict)

    @property
    def is_alone(self) -> bool:
        return self.plan.is_alone


@dataclass
class Seen:
    """What one check makes of the job: per host what was seen, or why nothing could be; and what is wrong."""

    values: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    blind: dict[str, str] = field(default_factory=dict)  # host, or "" for all: why it is not possible to tell


def seeing_hosts(job: Job, check: str, seen: Seen) -> Iterable[tuple[Host, Facts]]:
    """Each host with its facts; those that could not look are noted as blind."""
    for host in job.hosts:
        facts = host.of(check)
        if "blind" in facts:
            seen.blind[host.name] = str(facts["blind"])
        else:
            yield host, facts
