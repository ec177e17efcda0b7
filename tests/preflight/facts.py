"""Facts as hosts would report them: healthy ones, to be changed where a test wants a fault."""

from __future__ import annotations

import copy
from typing import Any

from rankwise.preflight.job import Host, Job, Link
from rankwise.preflight.plan import CheckPlan

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
HEALTHY: dict[str, dict[str, Any]] = {
    "address": {"name": "node-a", "addresses": ["10.0.0.1"], "error": "", "own": False},
    "interface": {
        "route": "eth0",
        "source": "10.0.0.2",
        "mtu": 1500,
        "gloo": {"name": "eth0", "address": "10.0.0.2", "why": "the host name resolves so"},
        "nccl": {"name": "eth0", "address": "10.0.0.2", "why": "the first that is up"},
        "is_lost": False,
        "known": {"lo": ["127.0.0.1"], "eth0": ["10.0.0.2"], "docker0": ["172.17.0.1"]},
        "variables": {"GLOO_SOCKET_IFNAME": "", "NCCL_SOCKET_IFNAME": ""},
    },
    "rendezvous-port": {"port": 29500, "opens": False, "free": True, "reached": "", "error": "", "holders": []},
    "memory": {"source": "machine", "limit": 64 * GIB, "left": 60 * GIB, "ranks": 2},
    "cpu": {"cores": 16.0, "ranks": 2, "busy": 0.1, "steal": 0.0},
    "shared-memory": {"size": 32 * GIB, "free": 32 * GIB, "ranks": 2, "error": ""},
    "ulimits": {"files": 65536, "files_hard": 65536, "locked": None, "rdma": True, "ranks": 2},
    "disk": {"folder": "/data", "free": 500 * GIB, "error": ""},
    "leftovers": {"found": [], "count": 0, "unseen": 0},
    "versions": {
        "python": "3.12.1",
        "torch": "2.13.0",
        "cuda": "13.0",
        "driver": "580.1",
        "nccl": "2.28.9",
        "nccl_net": "none",
        "gloo": "there",
        "rankwise": "0.1.0",
        "error": "",
    },
    "platforms": {"os": "Debian 12", "kernel": "6.1", "libc": "glibc 2.36", "arch": "x86_64", "cpu": "EPYC", "cores": "32"},
    "variables": {"variables": {"NCCL_DEBUG": "WARN"}},
    "code": {"files": {"train.py": "aa", "model.py": "bb"}, "script": "train.py"},
    "gpu-count": {
        "present": 2,
        "names": ["NVIDIA H200", "NVIDIA H200"],
        "why_none": "",
        "seen_by_torch": 2,
        "cuda_build": True,
        "error": "",
        "visible": None,
        "ranks": 2,
    },
    "gpu-memory": DRIVER,
    "gpu-health": DRIVER,
    "gpu-peers": {"gpus": 2, "blocked": []},
    "fit": {
        "target": "m:step",
        "largest": 64,
        "first_failing": 96,
        "why": "",
        "error": "",
        "device": "cuda",
        "memory": 140 * GIB,
        "peak": GIB,
    },
}
GOOD_LINK: dict[str, Any] = {
    "rtt_s": 0.0002,
    "lost_out": 0.0,
    "lost_back": 0.0,
    "largest": 1472,
    "wanted": 1472,
    "up": 1.1e9,
    "down": 1.2e9,
}


def job_of(num_hosts: int, **more: Any) -> Job:
    """Healthy hosts node-a, node-b, …, who all met and measured each other."""
    names = [f"node-{letter}" for letter in "abcdefgh"[:num_hosts]]
    plan = CheckPlan(
        nodes_min=num_hosts, nodes_max=num_hosts, nproc="2", master="node-a", port=29500, only=(*CheckPlan().only,), **more.pop("plan", {})
    )
    hosts = tuple(
        Host(
            name,
            i,
            copy.deepcopy(HEALTHY),
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
    return Job(plan, hosts, links=links, reached=reached, offsets_s=offsets, **more)


def facts_of(job: Job, node: int, check: str) -> dict[str, Any]:
    """One host's facts of one check, to be changed in place."""
    return job.hosts[node].facts[check]
