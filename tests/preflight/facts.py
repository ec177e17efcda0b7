"""Facts as hosts would report them: healthy ones, to be changed where a test wants a fault."""

from __future__ import annotations

import copy
import functools
import importlib
from typing import Any

from rankwise.preflight.all_checks import all_checks
from rankwise.preflight.facts import CheckedJob, Host, Link
from rankwise.preflight.job_options import CheckPlan

GIB = 1 << 30
GPU = {
    "name": "NVIDIA H200",
    "total": 140 * GIB,
    "used": 0,
    "ecc": 0,
    "remap_pending": False,
    "remap_failed": False,
    "throttle": 0,
    "processes": [],
}
DRIVER = {"gpus": [GPU, GPU], "xids": {}, "xids_blind": ""}
GOOD_LINK: dict[str, Any] = {
    "rtt_s": 0.0002,
    "lost_out": 0.0,
    "lost_back": 0.0,
    "largest": 1472,
    "wanted": 1472,
    "up": 1.1e9,
    "down": 1.2e9,
}


@functools.cache
def healthy_facts() -> dict[str, Any]:
    """What each check's `look` returns on a healthy host: `HEALTHY` in the check's own test."""
    modules = {check.name: f"{__package__}.checks.test_{check.name.replace('-', '_')}" for check in all_checks()}
    found = {name: importlib.import_module(module) for name, module in modules.items()}
    return {name: module.HEALTHY for name, module in found.items() if hasattr(module, "HEALTHY")}


def job_of(num_hosts: int, **more: Any) -> CheckedJob:
    """Healthy hosts node-a, node-b, …, who all met and measured each other."""
    names = [f"node-{letter}" for letter in "abcdefgh"[:num_hosts]]
    plan = CheckPlan(
        nodes_min=num_hosts, nodes_max=num_hosts, nproc="2", master="node-a", port=29500, only=(*CheckPlan().only,), **more.pop("plan", {})
    )
    hosts = tuple(
        Host(
            name,
            i,
            copy.deepcopy(healthy_facts()),
            {"nnodes": num_hosts, "node_rank": i, "nproc": 2, "master": "node-a", "port": 29500, "tries": {}},
        )
        for i, name in enumerate(names)
    )
    for i, host in enumerate(hosts):
        address = f"10.0.0.{i + 1}"
        host.facts["interface"]["known"]["eth0"] = [address]
        host.facts["interface"] |= {"source": address, "gloo": {"name": "eth0", "address": address, "why": "the host name resolves so"}}
        host.facts["address"]["own"] = i == 0
    links = tuple(Link(a, b, dict(GOOD_LINK)) for i, a in enumerate(names) for b in names[i + 1 :])
    reached = {a: {b: {"high": True, "gloo": True} for b in names if b != a} for a in names} if num_hosts > 1 else {}
    offsets = dict.fromkeys(names, (0.0, 0.001))
    more.setdefault("collective", {"gloo": {name: {"wrong": [], "bytes_per_s": 5e8} for name in names}} if num_hosts > 1 else {})
    return CheckedJob(plan, hosts, links=links, reached=reached, offsets_s=offsets, **more)


def facts_of(job: CheckedJob, node: int, check: str) -> dict[str, Any]:
    """One host's facts of one check, to be changed in place."""
    return job.hosts[node].facts[check]
