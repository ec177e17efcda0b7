"""Runs a check from beginning to end: looks at this host, meets the others, measures, judges."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from rankwise.meet.network import gloo_interface, interfaces, own_addresses, resolve, source_address
from rankwise.meet.ports import free_port
from rankwise.meet.threads import run_all
from rankwise.preflight.all_checks import judge_all, look_around, sorted_findings
from rankwise.preflight.checks import rendezvous_port
from rankwise.preflight.checks.interface import exports
from rankwise.preflight.conduct import Meeting, admit_hosts
from rankwise.preflight.facts import CheckedJob, Facts, Here, Host
from rankwise.preflight.job_options import CheckPlan
from rankwise.preflight.joining import attend, find_meeting, is_led
from rankwise.preflight.meeting_listener import MeetingListener
from rankwise.preflight.members import Agent
from rankwise.preflight.probes import Probes
from rankwise.preflight.torch_process import TorchProcess
from rankwise.preflight.wire import ConnectionLost, token_of

SCHEMA = 1
_TORCH_GROUPS = {"collectives", "parity", "gpus", "fit"}
_QUICK_S = 2.0
_COLLECTIVE_S = 15.0

Say = Callable[[str], None]


def run_check(plan: CheckPlan, say: Say) -> dict[str, Any]:
    """The report as a JSON document. `say` is called with each step; the check ends soon after the plan's time limit at the latest."""
    started = time.monotonic()
    torch = TorchProcess()
    try:
        if _TORCH_GROUPS & set(plan.only):
            torch.start()
        here = Here(plan, torch, started + plan.limit_s)
        if plan.is_alone:
            return _report(_alone(here, say), started)
        return _with_others(here, say, started)
    finally:
        torch.close()


def _alone(here: Here, say: Say) -> CheckedJob:
    facts = look_around(here, say)
    collective = _local_collective(here, say) if "collectives" in here.plan.only else {}
    return CheckedJob(here.plan, (Host(here.name, 0, facts, _job_of(here)),), collective=collective)


def _local_collective(here: Here, say: Say) -> Facts:
    """Two ranks of our own, through gloo, and through NCCL where there are two GPUs."""
    if here.ranks < 2:
        return {"blind": "one rank has no other to reduce with"}
    first = here.torch.facts(here.patience_s())
    if "error" in first:
        return {"blind": "torch cannot be imported"}
    found: Facts = {}
    with contextlib.closing(TorchProcess(here.environ)) as second:
        for backend in ("gloo", "nccl") if first.get("gpus", 0) > 1 else ("gloo",):
            say(f"trying collectives on {backend}")
            command: Facts = {"do": "collective", "backend": backend, "world_size": 2, "limit_s": _COLLECTIVE_S}
            command |= {"host": "127.0.0.1", "port": free_port()}
            left = max(1.0, min(_COLLECTIVE_S + 10.0, here.seconds_left()))
            ranks = enumerate([here.torch, second])
            asks = {f"rank {rank}": partial(torch.ask, {**command, "rank": rank, "device": rank}, left) for rank, torch in ranks}
            found[backend] = {name: {"error": "no answer"} for name in asks} | run_all(asks, left + _QUICK_S)
    return found


@dataclass(frozen=True)
class Way:
    """Where the meeting is: the addresses of its host, which of them are ours, and the state of its port before the check opened it."""

    addresses: list[str]
    own: list[str]
    port_facts: Facts


def _with_others(here: Here, say: Say, started: float) -> dict[str, Any]:
    """Lead the meeting where the rendezvous address is ours, else join it."""
    addresses = resolve(here.plan.master).addresses
    way = Way(list(addresses), own_addresses(here.plan.master, addresses, interfaces()), rendezvous_port.look(here))
    looked = {"rendezvous-port": way.port_facts} if "ports" in here.plan.only else {}
    probes = _probes(here, way)
    with contextlib.closing(probes) if probes is not None else contextlib.nullcontext():
        agent = Agent(here, probes, lambda: look_around(here, say, looked))
        if _may_lead(here, way):
            strangers: list[dict[str, str]] = []
            listener = MeetingListener(way.own, here.plan.port, admit_hosts(here.plan.job_id, strangers))
            if listener.ports:
                with contextlib.closing(listener):
                    return _lead(Meeting(agent, _job_of(here), listener, strangers, say), started)
        return _attend(here, agent, way, say, started)


def _may_lead(here: Here, way: Way) -> bool:
    """Whether this host leads: node 0 does, or where torchrun assigns the ranks, the first host at the rendezvous address."""
    if here.plan.node_rank is not None:
        return bool(way.own) and here.plan.node_rank == 0
    return bool(way.own) and not is_led(way.own, here.plan.port, _hello(here))


def _lead(meeting: Meeting, started: float) -> dict[str, Any]:
    meeting.gather(started)
    report = _report(meeting.measure(), started)
    meeting.tell(report)
    return report


def _attend(here: Here, agent: Agent, way: Way, say: Say, started: float) -> dict[str, Any]:
    """Join the meeting; where there is none, report what this host alone sees."""
    options, why = _job_of(here), f"{here.plan.master} does not resolve here"
    meeting: Facts = {"is_host": False, "why": why, "refusal": "", "is_broken": False}
    if way.addresses:
        deadline = min(started + here.plan.wait_s, here.deadline - _QUICK_S)
        search = find_meeting(way.addresses, here.plan.port, _hello(here), deadline, say)
        if search.sock is not None:
            way.port_facts["opens"] = False  # the leading `check`, perhaps on this machine, holds the port
            try:
                return attend(search.sock, agent, say)
            except ConnectionLost as error:
                meeting |= {"is_broken": True, "why": f"the meeting broke off: {error}"}
        else:
            nobody = f"nobody was met at {here.plan.master}:{here.plan.port} within {time.monotonic() - started:.0f} s"
            meeting |= {"refusal": search.refusal, "why": search.refusal or nobody}
        options["tries"] = search.tries
    options["nproc"] = here.ranks
    host = Host(here.name, here.plan.node_rank or 0, agent.facts(), options)
    job = CheckedJob(here.plan, (host,), meeting=meeting, collective={"blind": meeting["why"]})
    return _report(job, started, note=f"this host alone: {meeting['why']}")


def _probes(here: Here, way: Way) -> Probes | None:
    """Open at the address that leads to the meeting; None where there is none."""
    address = here.plan.local_addr or (way.own[0] if way.own else next(filter(None, map(source_address, way.addresses)), ""))
    if not address:
        return None
    probes = Probes(address, gloo_interface(here.environ, here.name, interfaces())[1])
    try:
        probes.open()
    except OSError:
        probes.close()
        return None
    return probes


def _job_of(here: Here) -> dict[str, Any]:
    """The job as this host's options describe it; other hosts may have been given other options."""
    plan = here.plan
    return {"nnodes": plan.nodes_max, "node_rank": plan.node_rank, "nproc": plan.nproc, "master": plan.master, "port": plan.port}


def _hello(here: Here) -> dict[str, Any]:
    return {"name": here.name, "told": _job_of(here), "token": token_of(here.plan.job_id)}


def _report(job: CheckedJob, started: float, note: str = "") -> dict[str, Any]:
    """The report as one JSON document; the terminal's text is made from it, on every host alike."""
    results = judge_all(job)
    statuses = [result.status for result in results]
    return {
        "schema": SCHEMA,
        "outcome": "fail" if "fail" in statuses else "warn" if "warn" in statuses else "pass",
        "nodes": {"expected": job.plan.nodes_max, "present": len(job.hosts)},
        "hosts": [{"name": host.name, "node_rank": host.node, "address": host.address} for host in job.hosts],
        "rendezvous": {"host": job.plan.master, "port": job.plan.port},
        "seconds": round(time.monotonic() - started, 2),
        "counts": {status: statuses.count(status) for status in ("pass", "warn", "fail", "not possible")},
        "note": note,
        "exports": {host.name: exports(host) for host in job.hosts} if job.plan.master else {},
        "findings": [finding.to_dict() for finding in sorted_findings(results)],
        "results": [result.to_dict() for result in results],
    }
