"""What checks look at and judge: this host (`Here`), the facts of all hosts, and what was measured between them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rankwise.causes import load_cause
from rankwise.findings import Finding, Place
from rankwise.meet.differences import find_difference
from rankwise.preflight.gpus import gpu_facts
from rankwise.preflight.job_options import CheckPlan
from rankwise.preflight.torch_process import TorchProcess

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
class CheckedJob:
    """The data that checks judge. `links` and `meeting` are empty for one host."""

    plan: CheckPlan
    hosts: tuple[Host, ...]
    links: tuple[Link, ...] = ()
    reached: Mapping[str, Mapping[str, Facts]] = field(default_factory=dict)  # from host: to host: what happened
    offsets_s: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # host: its clock against node 0's, and the error of that
    collective: Facts = field(default_factory=dict)
    meeting: Facts = field(default_factory=dict)

    def named(self, names: Collection[str]) -> list[Host]:
        return [host for host in self.hosts if host.name in names]


@dataclass
class Seen:
    """The result of one check: per host what was seen, or why nothing could be, and the findings."""

    values: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    blind: dict[str, str] = field(default_factory=dict)  # host, or "" for all: why it is not possible to tell

    def add(self, code: str, summary: str, hosts: Host | Iterable[Host], *, certain: bool = True, **details: Any) -> None:
        """Add a finding about one or several hosts."""
        places = (hosts.place,) if isinstance(hosts, Host) else tuple(host.place for host in hosts)
        self.findings.append(load_cause(code).finding(summary, certain=certain, **{"culprits": places, **details}))

    def add_difference(self, code: str, what: str, values: Mapping[str, str], job: CheckedJob, **details: Any) -> None:
        """Add a finding if the hosts have different values; the culprits are the odd ones out."""
        if differs := find_difference(values):
            self.add(code, f"{what} differs between hosts: {differs.text()}", job.named(differs.odd), **details)


def seeing_hosts(job: CheckedJob, check: str, seen: Seen) -> Iterable[tuple[Host, Facts]]:
    """Each host with its facts; a host that could not look is noted as blind."""
    for host in job.hosts:
        facts = host.of(check)
        if "blind" in facts:
            seen.blind[host.name] = str(facts["blind"])
        else:
            yield host, facts


@dataclass
class Here:
    """What a look may use. `torch` runs in a process of its own, so that a broken or slow torch breaks or slows nothing else."""

    plan: CheckPlan
    torch: TorchProcess
    deadline: float
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    def patience_s(self) -> float:
        """The seconds for one look: half of what is left, so that a host that is stuck leaves the others time to measure."""
        return max(0.0, self.seconds_left() / 2)

    @cached_property
    def name(self) -> str:
        return socket.gethostname()

    @cached_property
    def ranks(self) -> int:
        """Ranks this host is to run: `--nproc-per-node`, with torchrun's words for it resolved."""
        if self.plan.nproc.isdecimal():
            return int(self.plan.nproc)
        gpus = int(self.torch.facts(self.patience_s()).get("gpus", 0))
        return gpus if self.plan.nproc == "gpu" or (self.plan.nproc == "auto" and gpus) else os.cpu_count() or 1

    @cached_property
    def gpus(self) -> dict[str, Any]:
        return gpu_facts()
