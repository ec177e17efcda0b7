"""What the checks make of a host's facts: each fault is named on the host that has it, and healthy hosts pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rankwise.findings import Finding
from rankwise.preflight.catalogue import all_checks, judge_all
from rankwise.preflight.job import Job
from tests.preflight.facts import GIB, GPU, facts_of, job_of

# what is wrong on node-b: the check that must say so, its status, the code, a word of the summary
Change = Callable[[Job], Any]
FAULTS: dict[str, tuple[Change, str, str, str, str]] = {
    "name unresolvable": (
        lambda job: facts_of(job, 1, "address").update(addresses=[], error="Name or service not known"),
        "address", "fail", "RW106", "node-b cannot resolve",
    ),
    "name means itself": (
        lambda job: [facts_of(job, 1, "address").update(addresses=["127.0.1.1"], own=True), job.hosts[0].plan.update(node_rank=None)],  # type: ignore[attr-defined]
        "address", "pass", "", "",
    ),
    "another master": (
        lambda job: [job.hosts[1].plan.update(master="node-x"), facts_of(job, 1, "address").update(addresses=["10.0.0.9"])],  # type: ignore[attr-defined]
        "address", "fail", "RW103", "node-x:29500 on node-b",
    ),
    "another port": (lambda job: job.hosts[1].plan.update(port=29501), "address", "fail", "RW103", "29501"),  # type: ignore[attr-defined]
    "gloo variable names nothing": (
        lambda job: facts_of(job, 1, "interface")["variables"].update(GLOO_SOCKET_IFNAME="^docker"),
        "interface", "fail", "RW108", "NCCL's syntax",
    ),
    "nccl variable names nothing": (
        lambda job: facts_of(job, 1, "interface")["variables"].update(NCCL_SOCKET_IFNAME="=eth"),
        "interface", "fail", "RW108", "NCCL_SOCKET_IFNAME==eth fits no interface of node-b",
    ),
    "local address of somebody else": (
        lambda job: facts_of(job, 1, "interface").update(is_lost=True, route="", source="10.9.9.9"),
        "interface", "fail", "RW108", "--local-addr 10.9.9.9 is no address of node-b",
    ),
    "nccl takes another interface": (
        lambda job: facts_of(job, 1, "interface")["nccl"].update(name="eth1", address="192.168.0.2"),
        "interface", "warn", "RW114", "NCCL on node-b would use eth1, but eth0",
    ),
    "port held": (
        lambda job: facts_of(job, 1, "rendezvous-port").update(
            opens=True, free=False, error="EADDRINUSE", holders=[{"pid": 42, "program": "nginx", "user": "www", "command": "nginx -g x"}]
        ),
        "rendezvous-port", "fail", "RW107", "held by nginx (pid 42, user www: nginx -g x)",
    ),
    "port held by somebody unseen": (
        lambda job: facts_of(job, 1, "rendezvous-port").update(opens=True, free=False, error="EADDRINUSE"),
        "rendezvous-port", "fail", "RW107", "may not look at",
    ),
    "port not allowed": (
        lambda job: facts_of(job, 1, "rendezvous-port").update(opens=True, free=False, error="EACCES"),
        "rendezvous-port", "fail", "RW602", "may not open port 29500",
    ),
    "little memory": (lambda job: facts_of(job, 1, "memory").update(source="cgroup", limit=GIB, left=GIB // 2), "memory", "fail", "RW611", "256 MiB"),
    "less memory than the others": (lambda job: facts_of(job, 1, "memory").update(left=10 * GIB), "memory", "warn", "RW611", "5.0 GiB"),
    "few cores": (lambda job: facts_of(job, 1, "cpu").update(cores=1.0), "cpu", "warn", "RW612", "1 cores for 2 ranks"),
    "busy": (lambda job: facts_of(job, 1, "cpu").update(busy=0.9), "cpu", "warn", "RW612", "90% busy"),
    "steal": (lambda job: facts_of(job, 1, "cpu").update(steal=0.2), "cpu", "warn", "RW612", "20%"),
    "small shm": (lambda job: facts_of(job, 1, "shared-memory").update(size=64 << 20, free=64 << 20), "shared-memory", "warn", "RW613", "64 MiB"),
    "no shm": (lambda job: facts_of(job, 1, "shared-memory").update(free=1 << 20), "shared-memory", "fail", "RW613", "1 MiB"),
    "few files": (lambda job: facts_of(job, 1, "ulimits").update(files=64), "ulimits", "fail", "RW614", "64 files"),
    "the usual 1024 files": (lambda job: facts_of(job, 1, "ulimits").update(files=1024), "ulimits", "warn", "RW614", "1024 files"),
    "locked memory": (lambda job: facts_of(job, 1, "ulimits").update(locked=65536), "ulimits", "warn", "RW614", "64 KiB"),
    "disk full": (lambda job: facts_of(job, 1, "disk").update(free=1 << 20), "disk", "fail", "RW615", "1 MiB free"),
    "disk not writable": (lambda job: facts_of(job, 1, "disk").update(error="may not be written"), "disk", "fail", "RW615", "may not be written"),
    "leftover": (
        lambda job: facts_of(job, 1, "leftovers").update(
            count=1, found=[{"pid": 7, "program": "python", "user": "me", "rank": "3", "memory": GIB, "age_s": 86400.0}]
        ),
        "leftovers", "warn", "RW617", "1 process of an earlier job still runs on node-b",
    ),
    "torch version": (lambda job: facts_of(job, 1, "versions").update(torch="2.12.0"), "versions", "fail", "RW123", "2.12.0 on node-b, 2.13.0 on node-a and node-c"),
    "python patch": (lambda job: facts_of(job, 1, "versions").update(python="3.12.2"), "versions", "warn", "RW123", "3.12.2"),
    "python minor": (lambda job: facts_of(job, 1, "versions").update(python="3.11.2"), "versions", "fail", "RW123", "3.11.2"),
    "nccl plugin": (lambda job: facts_of(job, 1, "versions").update(nccl_net="libnccl-net.so"), "versions", "fail", "RW123", "libnccl-net"),
    "torch broken": (
        lambda job: facts_of(job, 1, "versions").update(error="ImportError: no libcudart", cuda="none", nccl="none", gloo="none"),
        "versions", "fail", "RW624", "torch cannot be imported on node-b",
    ),
    "nccl variable": (lambda job: facts_of(job, 1, "variables")["variables"].update(NCCL_PROTO="LL"), "variables", "fail", "RW125", "NCCL_PROTO"),
    "own variable": (lambda job: facts_of(job, 1, "variables")["variables"].update(CUDA_VISIBLE_DEVICES="1"), "variables", "warn", "RW125", "not set on"),
    "code": (lambda job: facts_of(job, 1, "code")["files"].update({"model.py": "cc"}), "code", "fail", "RW622", "model.py differs"),
    "file missing": (lambda job: facts_of(job, 1, "code")["files"].pop("model.py"), "code", "fail", "RW622", "not there on node-b"),
    "kernel": (lambda job: facts_of(job, 1, "platforms").update(cpu="Xeon"), "platforms", "warn", "RW623", "Xeon on node-b"),
    "too few GPUs": (lambda job: facts_of(job, 1, "gpu-count").update(seen_by_torch=1), "gpu-count", "fail", "RW122", "1 usable GPU for 2 ranks"),
    "no GPU at all": (lambda job: facts_of(job, 1, "gpu-count").update(present=0, seen_by_torch=0, names=[]), "gpu-count", "fail", "RW122", "0 usable"),
    "GPU memory": (lambda job: facts_of(job, 1, "gpu-memory").update(gpus=[GPU, GPU | {"used": 100 * GIB}]), "gpu-memory", "fail", "RW631", "GPU 1 of node-b"),
    "some GPU memory": (lambda job: facts_of(job, 1, "gpu-memory").update(gpus=[GPU | {"used": 2 * GIB}]), "gpu-memory", "warn", "RW631", "2.0 GiB"),
    "ECC": (lambda job: facts_of(job, 1, "gpu-health").update(gpus=[GPU | {"ecc": 3}]), "gpu-health", "fail", "RW632", "3 uncorrected"),
    "Xid": (lambda job: facts_of(job, 1, "gpu-health").update(xids={"79 (PCI:0)": 1}), "gpu-health", "warn", "RW632", "Xid 79"),
    "hot": (lambda job: facts_of(job, 1, "gpu-health").update(gpus=[GPU | {"throttle": 0x40}]), "gpu-health", "warn", "RW633", "too hot"),
    "idle and power cap": (lambda job: facts_of(job, 1, "gpu-health").update(gpus=[GPU | {"throttle": 0x5}]), "gpu-health", "pass", "", ""),
    "no peer access": (lambda job: facts_of(job, 1, "gpu-peers").update(blocked=[[0, 1]]), "gpu-peers", "warn", "RW634", "0→1"),
    "nothing fits": (lambda job: facts_of(job, 1, "fit").update(largest=0, first_failing=1), "fit", "fail", "RW640", "not even one sample"),
    "the step fails": (lambda job: facts_of(job, 1, "fit").update(error="at size 1: TypeError: x"), "fit", "fail", "RW640", "m:step fails on node-b"),
}  # fmt: skip


def result_of(job: Job, check: str) -> Any:
    return next(result for result in judge_all(job) if result.check == check)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_on_its_host(fault: str) -> None:
    change, check, status, code, word = FAULTS[fault]
    job = job_of(3)
    change(job)

    result = result_of(job, check)

    assert result.status == status, result
    if code:
        finding: Finding = result.findings[0]
        assert finding.code == code
        assert word in finding.summary
        assert {place.host for place in finding.culprits} == {"node-b"}
        assert result.odd == ["node-b"]
        assert finding.next, "every finding has a next step"


@pytest.mark.parametrize("num_hosts", [1, 2, 4])
def test_healthy_hosts_pass(num_hosts: int) -> None:
    results = judge_all(job_of(num_hosts))

    assert {result.check for result in results} == {check.name for check in all_checks()}
    assert not [finding.summary for result in results for finding in result.findings]
    assert {result.status for result in results} <= ({"pass"} if num_hosts > 1 else {"pass", "not possible"})


def test_with_two_hosts_nobody_is_called_odd_alone() -> None:
    job = job_of(2)
    facts_of(job, 1, "versions").update(torch="2.12.0")

    assert result_of(job, "versions").odd == ["node-a", "node-b"]


def test_a_host_that_could_not_look_is_not_called_a_pass() -> None:
    job = job_of(3)
    job.hosts[1].facts["memory"].clear()  # type: ignore[attr-defined]
    job.hosts[1].facts["memory"]["blind"] = "OSError: no"  # type: ignore[index]
    result = result_of(job, "memory")

    assert (result.status, result.why) == ("not possible", "OSError: no")
    assert set(result.values) == {"node-a", "node-c"}


@pytest.mark.parametrize("rubbish", [{}, {"left": None}, {"left": "much", "ranks": []}], ids=str)
def test_facts_that_cannot_be_read_break_nothing(rubbish: dict[str, Any]) -> None:
    job = job_of(2)
    for check in job.hosts[1].facts:
        job.hosts[1].facts[check].clear()
        job.hosts[1].facts[check].update(rubbish)

    assert all(result.status in ("pass", "warn", "fail", "not possible") for result in judge_all(job))


def test_values_of_secrets_are_compared_but_never_shown() -> None:
    from rankwise.preflight.checks.variables import _shown

    job = job_of(2)
    for node, secret in enumerate(("hunter2", "hunter3")):
        facts_of(job, node, "variables")["variables"]["NCCL_API_KEY"] = _shown("NCCL_API_KEY", secret, "job")
    result = result_of(job, "variables")

    assert (result.status, result.findings[0].code) == ("fail", "RW125")
    assert "hidden value A on node-a" in result.findings[0].summary
    assert "hunter" not in str(result.to_dict()) and "hunter" not in str(job.hosts)
