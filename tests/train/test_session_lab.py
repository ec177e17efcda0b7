"""session() between hosts: each fault of the network is named with its stage, its host and its rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.hosts import Host, lab, why_no_lab
from tests.train.stage import Part, Stage, rank_env, stage

PORT = 29511
WHY_NOT = why_no_lab()
pytestmark = [pytest.mark.live, pytest.mark.netns, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]
long = pytest.mark.skipif(not os.environ.get("RANKWISE_LONG"), reason="takes long; RANKWISE_LONG=1 runs it")


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("cast")) as it:
        yield it


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    with lab(2) as them:
        yield them


def play(
    cast: Stage, hosts: list[Host], world_size: int | None = None, *, envs: dict[int, dict[str, Any]] | None = None, **args: Any
) -> list[Part]:
    """Rank i on host i, all looking for node-a; `envs` changes the environment of single ranks, `args` go to all."""
    parts = []
    for rank, host in enumerate(hosts):
        own = {name: value.get(rank) if isinstance(value, dict) else value for name, value in args.items()}
        env = (
            rank_env(rank, world_size or len(hosts), PORT, "node-a", local_rank=0)
            | {"GLOO_SOCKET_IFNAME": "eth0"}
            | (envs or {}).get(rank, {})
        )
        parts.append(cast.play("sum", env, host=host, **own))
    return cast.end(parts)


def block(host: Host, rule: str) -> None:
    """Drop what arrives at a host and fits the rule."""
    rules = f"table inet wall {{\n chain in {{\n type filter hook input priority 0\n {rule} drop\n }}\n}}\n"
    subprocess.run(["ip", "netns", "exec", host.namespace, "nft", "-f", "-"], input=rules, text=True, check=True)


def told(part: Part) -> tuple[str, str, list[tuple[int, str]]]:
    """Code, stage, and the culprits' ranks and hosts."""
    finding = part.finding
    assert finding, part.text
    return finding["code"], finding["stage"], [(culprit["rank"], culprit["host"]) for culprit in finding["culprits"]]


def same(parts: list[Part]) -> tuple[str, str, list[tuple[int, str]]]:
    assert len({str(part.finding) for part in parts}) == 1, [part.text for part in parts]
    return told(parts[0])


def test_two_hosts_start(cast: Stage, hosts: list[Host]) -> None:
    parts = play(cast, hosts)

    assert [part.code for part in parts] == [0, 0], parts[0].text
    assert [part.told["sum"] for part in parts] == [1.0, 1.0]


def test_the_master_port_is_blocked(cast: Stage, hosts: list[Host]) -> None:
    block(hosts[0], f'iifname "eth0" tcp dport {PORT}')
    parts = play(cast, hosts, timeout_s=4.0)

    assert told(parts[1]) == ("RW111", "store", [(1, "node-b")])
    assert "no answer" in parts[1].finding["summary"] and "firewall" in parts[1].finding["why"]
    assert told(parts[0]) == ("RW101", "registration", [(1, None)])


def test_only_high_ports_are_blocked(cast: Stage, hosts: list[Host]) -> None:
    block(hosts[0], f'iifname "eth0" tcp dport != {PORT} tcp flags & (syn | ack) == syn')
    began = time.monotonic()
    parts = play(cast, hosts)

    assert same(parts) == ("RW114", "backend", [(0, "node-a")])
    assert "rank 1 on node-b cannot connect to rank 0 on node-a at 10.77.0.1:" in parts[0].finding["summary"]
    assert "firewall" in parts[0].finding["why"]
    assert time.monotonic() - began < 20


@long
def test_large_packets_are_dropped_on_the_way_to_one_host(cast: Stage, hosts: list[Host]) -> None:
    block(hosts[1], 'iifname "eth0" meta length > 1400')
    parts = play(cast, hosts)

    assert same(parts) == ("RW608", "store", [(1, "node-b")])
    assert "large ones vanish" in parts[0].finding["summary"]


@long
def test_large_packets_are_dropped_between_two_hosts_that_both_reach_the_store(cast: Stage) -> None:
    with lab(3) as hosts:
        block(hosts[1], 'iifname "eth0" ip saddr 10.77.0.3 meta length > 1400')  # the way round that gloo's ring takes
        parts = play(cast, hosts)

    assert same(parts) == ("RW608", "collective", [(1, "node-b")])
    assert "rank 2 on node-c reaches rank 1 on node-b" in parts[0].finding["summary"]


@long
def test_a_path_that_loses_packets_is_slow_and_not_accused(cast: Stage, hosts: list[Host]) -> None:
    for host in hosts:
        block(host, 'iifname "eth0" numgen random mod 100 < 15')
    parts = play(cast, hosts)

    assert [part.code for part in parts] == [0, 0], parts[0].text


def test_an_interface_that_leads_nowhere(cast: Stage, hosts: list[Host]) -> None:
    for words in ("link add docker0 type veth peer name end0", "address add 10.9.0.1/16 dev docker0", "link set docker0 up"):
        subprocess.run(["ip", "-n", hosts[0].namespace, *words.split()], check=True)
    parts = play(cast, hosts, envs={0: {"GLOO_SOCKET_IFNAME": "docker0"}})

    assert same(parts) == ("RW114", "backend", [(0, "node-a")])
    assert "offers 10.9.0.1 (interface docker0)" in parts[0].finding["why"]
    assert "on node-a: export GLOO_SOCKET_IFNAME=eth0" in parts[0].finding["next"]


def test_hosts_whose_own_names_are_loopback(cast: Stage, hosts: list[Host]) -> None:
    for own, other in (hosts, hosts[::-1]):
        files = Path("/etc/netns") / own.namespace
        (files / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {own.name}\n{other.address} {other.name}\n")
    parts = play(cast, hosts, envs={0: {"GLOO_SOCKET_IFNAME": None}, 1: {"GLOO_SOCKET_IFNAME": None}})

    assert same(parts) == ("RW114", "backend", [(0, "node-a"), (1, "node-b")])
    assert "127.0.1.1" in parts[0].finding["summary"]


def test_an_interface_that_is_not_there(cast: Stage, hosts: list[Host]) -> None:
    parts = play(cast, hosts, envs={1: {"GLOO_SOCKET_IFNAME": "ens5"}})

    assert same(parts) == ("RW108", "environment", [(1, "node-b")])


def test_the_name_does_not_resolve_on_one_host(cast: Stage, hosts: list[Host]) -> None:
    (Path("/etc/netns") / hosts[1].namespace / "hosts").write_text("127.0.0.1 localhost\n")
    parts = play(cast, hosts, timeout_s=3.0)

    assert told(parts[1]) == ("RW106", "address", [(1, "node-b")])
    assert told(parts[0]) == ("RW101", "registration", [(1, None)])


@long
def test_two_different_masters(cast: Stage, hosts: list[Host]) -> None:
    parts = play(cast, hosts, timeout_s=3.0, envs={1: {"MASTER_ADDR": "node-b"}})

    assert told(parts[1]) == ("RW103", "store", [(1, "node-b")])
    assert told(parts[0]) == ("RW101", "registration", [(1, None)])


@pytest.mark.parametrize("program", ["silent", pytest.param("http", marks=long)])
def test_the_port_is_held_by_another_program(cast: Stage, hosts: list[Host], program: str) -> None:
    silent = f"import socket, time; s = socket.create_server(('', {PORT})); print('up', flush=True); time.sleep(60)"
    command = ["-c", silent] if program == "silent" else ["-m", "http.server", str(PORT)]
    holder = hosts[0].start([sys.executable, "-u", *command])
    deadline = time.monotonic() + 10
    while (
        subprocess.run(["ip", "netns", "exec", hosts[0].namespace, "ss", "-ltnH"], capture_output=True).stdout.count(str(PORT).encode()) < 1
    ):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    parts = play(cast, hosts, timeout_s=30.0)

    assert told(parts[0]) == ("RW107", "store", [(0, "node-a")])
    assert f"pid {holder.pid}" in parts[0].finding["summary"] and "user root" in parts[0].finding["summary"]
    assert told(parts[1]) == ("RW107", "store", [(0, "node-a")])


def test_a_host_is_missing(cast: Stage, hosts: list[Host]) -> None:
    parts = play(cast, hosts, 3, timeout_s=4.0)

    assert same(parts) == ("RW101", "registration", [(2, None)])
    assert "rank 0 on node-a and rank 1 on node-b" in parts[0].finding["why"]
    assert "2 of 3 ranks registered, waiting for rank 2" in parts[0].text


@long
def test_a_host_is_late(cast: Stage, hosts: list[Host]) -> None:
    parts = play(cast, hosts, late_s={0: 0.0, 1: 4.0})

    assert [part.code for part in parts] == [0, 0]
    assert "1 of 2 ranks registered, waiting for rank 1" in parts[0].text


def test_another_version_of_torch_on_one_host(cast: Stage, hosts: list[Host]) -> None:
    parts = play(cast, hosts, versions={1: {"torch": "2.11.0"}})

    code, at, culprits = same(parts)
    assert (code, at) == ("RW123", "registration") and (1, "node-b") in culprits
    assert "2.11.0 on rank 1" in parts[0].finding["summary"]


def test_other_nccl_and_gloo_settings_on_one_host(cast: Stage, hosts: list[Host]) -> None:
    parts = play(cast, hosts, envs={1: {"NCCL_ALGO": "Tree", "GLOO_DEVICE_TRANSPORT": "TCP"}})

    assert [part.code for part in parts] == [0, 0]
    assert [note["code"] for note in parts[1].told["notes"]] == ["RW125", "RW125"]
    assert "GLOO_DEVICE_TRANSPORT is not the same on all ranks" in parts[0].text
    assert "NCCL_ALGO is not the same on all ranks: (not set) on rank 0, Tree on rank 1" in parts[0].text


def test_one_rank_on_two_hosts(cast: Stage, hosts: list[Host]) -> None:
    envs = [rank_env(rank, 3, PORT, "node-a", local_rank=0) | {"GLOO_SOCKET_IFNAME": "eth0"} for rank in (0, 1, 1)]
    parts = cast.end([cast.play("sum", env, host=host) for env, host in zip(envs, [hosts[0], hosts[0], hosts[1]])])

    code, at, culprits = same(parts)
    assert (code, at, sorted(culprits)) == ("RW102", "registration", [(1, "node-a"), (1, "node-b")])


@pytest.mark.parametrize("rank", [0, 1])
def test_the_world_size_is_one_more_on_one_host(cast: Stage, hosts: list[Host], rank: int) -> None:
    parts = play(cast, hosts, envs={rank: {"WORLD_SIZE": "3"}})

    code, at, culprits = same(parts)
    assert (code, at) == ("RW112", "registration") and (rank, hosts[rank].name) in culprits
    assert "WORLD_SIZE=3 on rank" in parts[0].finding["summary"]


@long
def test_ctrl_c_while_the_backend_cannot_connect_is_heard_at_once_and_told_to_the_others(cast: Stage, hosts: list[Host]) -> None:
    block(hosts[0], f'iifname "eth0" tcp dport != {PORT} tcp flags & (syn | ack) == syn')
    envs = [rank_env(rank, 2, PORT, "node-a", local_rank=0) | {"GLOO_SOCKET_IFNAME": "eth0"} for rank in range(2)]
    parts = [cast.play("sum", env, host=host) for env, host in zip(envs, hosts)]
    time.sleep(2.0)  # connected to the store, and stuck in torch
    began = time.monotonic()
    cast.kill(parts[1], signal.SIGINT)
    cast.end(parts)

    assert "KeyboardInterrupt" in parts[1].text
    assert told(parts[0]) == ("RW110", "backend", [(1, "node-b")])
    assert time.monotonic() - began < 5
