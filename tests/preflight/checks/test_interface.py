"""`interface`: what has the fault is named with its host, and what looks like it and has not passes."""

from __future__ import annotations

import pytest

from rankwise.preflight.checks.interface import exports
from tests.preflight.checks.judging import Change, Fault, assert_told, assert_told_on_node_b, reach
from tests.preflight.facts import facts_of, job_of

HEALTHY = {
    "route": "eth0",
    "source": "10.0.0.2",
    "mtu": 1500,
    "gloo": {"name": "eth0", "address": "10.0.0.2", "why": "the host name resolves so"},
    "nccl": {"name": "eth0", "address": "10.0.0.2", "why": "the first that is up"},
    "is_lost": False,
    "known": {"lo": ["127.0.0.1"], "eth0": ["10.0.0.2"], "docker0": ["172.17.0.1"]},
    "variables": {"GLOO_SOCKET_IFNAME": "", "NCCL_SOCKET_IFNAME": ""},
}

ON_ONE_HOST: dict[str, tuple[Change, str, str, str]] = {
    "gloo variable names nothing": (
        lambda job: facts_of(job, 1, "interface")["variables"].update(GLOO_SOCKET_IFNAME="^docker"),
        "fail", "RW108", "NCCL's syntax",
    ),
    "nccl variable names nothing": (
        lambda job: facts_of(job, 1, "interface")["variables"].update(NCCL_SOCKET_IFNAME="=eth"),
        "fail", "RW108", "NCCL_SOCKET_IFNAME==eth fits no interface of node-b",
    ),
    "local address of somebody else": (
        lambda job: facts_of(job, 1, "interface").update(is_lost=True, route="", source="10.9.9.9"),
        "fail", "RW108", "--local-addr 10.9.9.9 is not an address of node-b",
    ),
    "nccl takes another interface": (
        lambda job: facts_of(job, 1, "interface")["nccl"].update(name="eth1", address="192.168.0.2"),
        "warn", "RW114", "NCCL on node-b would use eth1, but eth0",
    ),
}  # fmt: skip
BETWEEN_HOSTS: dict[str, Fault] = {
    "gloo offers another address": (reach("ab", "cb", high=True, gloo=False), "fail", "RW114", "gloo on node-b offers 10.0.0.2 (eth0), which node-a, node-c cannot reach", "b"),
}  # fmt: skip


@pytest.mark.parametrize("fault", ON_ONE_HOST)
def test_a_fault_is_named_on_its_host(fault: str) -> None:
    assert_told_on_node_b("interface", ON_ONE_HOST[fault])


@pytest.mark.parametrize("fault", BETWEEN_HOSTS)
def test_a_fault_is_named_and_placed(fault: str) -> None:
    assert_told("interface", BETWEEN_HOSTS[fault])


@pytest.mark.parametrize(("change", "lines"), [({}, 2), ({"route": "", "source": ""}, 0), ({"route": "lo", "source": "127.0.0.1"}, 0)])
def test_what_to_paste_names_the_interface_that_leads_to_the_others(change: dict[str, str], lines: int) -> None:
    host = job_of(2).hosts[1]
    host.facts["interface"] |= change

    assert exports(host) == ["export GLOO_SOCKET_IFNAME=eth0", "export NCCL_SOCKET_IFNAME==eth0"][:lines]
