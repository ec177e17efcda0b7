"""Faults for the lab's hosts: firewalls, loss, latency, thin links, swallowed packets, wrong clocks, little memory.

Each is undone when its block ends, so that one set of hosts serves many.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.lab.hosts import INTERFACE, Host

_FILES = Path("/etc/netns")
_CGROUP = Path("/sys/fs/cgroup")


def why_no_nft() -> str:
    return "" if shutil.which("nft") else "nft not found (nftables)"


def why_no_relay() -> str:
    return "" if Path("/dev/net/tun").exists() else "no /dev/net/tun"


@contextlib.contextmanager
def firewall(host: Host, rule: str) -> Iterator[None]:
    """A rule for what comes in at this host: `tcp dport 29500 drop`."""
    run("ip", "netns", "exec", host.namespace, "nft", "add table inet lab; add chain inet lab in { type filter hook input priority 0; }")
    try:
        run("ip", "netns", "exec", host.namespace, "nft", f"add rule inet lab in {rule}")
        yield
    finally:
        run("ip", "netns", "exec", host.namespace, "nft", "delete table inet lab")


def port_blocked(host: Host, port: int) -> contextlib.AbstractContextManager[None]:
    return firewall(host, f"tcp dport {port} drop")


def high_ports_blocked(host: Host) -> contextlib.AbstractContextManager[None]:
    """Nobody may open a connection to a port the system picked; answers to own connections come through."""
    return firewall(host, "tcp flags & (syn | ack) == syn tcp dport 30000-65535 drop")


def losing(host: Host, percent: int) -> contextlib.AbstractContextManager[None]:
    return firewall(host, f"meta iifname {INTERFACE} numgen random mod 100 < {percent} drop")


@contextlib.contextmanager
def swallowing(hosts: list[Host], host: Host, size: int) -> Iterator[None]:
    """Packets above a size vanish on their way to one host; segments are cut by the sender, as on a real wire."""
    for each in hosts:
        run("ip", "-n", each.namespace, "link", "set", INTERFACE, "gso_max_segs", "1")
    try:
        with firewall(host, f"meta iifname {INTERFACE} meta length > {size} drop"):
            yield
    finally:
        for each in hosts:
            run("ip", "-n", each.namespace, "link", "set", INTERFACE, "gso_max_segs", "65535")


@contextlib.contextmanager
def thin_link(host: Host, rate: str) -> Iterator[None]:
    """What this host sends goes out at no more than this rate."""
    tc = ("tc", "-n", host.namespace, "qdisc")
    run(*tc, "add", "dev", INTERFACE, "root", "tbf", "rate", rate, "burst", "8kb", "latency", "200ms")
    try:
        yield
    finally:
        run(*tc, "delete", "dev", INTERFACE, "root")


@contextlib.contextmanager
def far_away(hosts: list[Host], host: Host, one_way_s: float) -> Iterator[None]:
    """Every packet to and from this host takes so long: its interface becomes a TUN device, with a relay to another one at the switch."""
    address, switch = f"{host.address}/24", switch_of(host)
    _rename(host, INTERFACE, "cable", address)
    relay_command = [sys.executable, "-m", "tests.lab.relay", host.namespace, switch, str(one_way_s)]
    relay = subprocess.Popen(relay_command, cwd=Path(__file__).parents[2])
    try:
        wait_for(lambda: has_link(host.namespace, INTERFACE) and has_link(switch, "far"))
        run("ip", "-n", host.namespace, "address", "add", address, "dev", INTERFACE)
        run("ip", "-n", host.namespace, "link", "set", INTERFACE, "up")
        run("ip", "-n", switch, "link", "set", "far", "up")
        run("ip", "-n", switch, "route", "add", f"{host.address}/32", "dev", "far")
        run("ip", "-n", switch, "address", "add", "10.77.0.254/24", "dev", "switch")
        for name in ("ip_forward", "conf/switch/proxy_arp"):
            run("ip", "netns", "exec", switch, "sh", "-c", f"echo 1 > /proc/sys/net/ipv4/{name}")
        forget_neighbours(hosts)
        yield
    finally:
        relay.kill()
        relay.wait()
        wait_for(lambda: not has_link(host.namespace, INTERFACE))
        run("ip", "-n", switch, "address", "delete", "10.77.0.254/24", "dev", "switch")
        run("ip", "-n", host.namespace, "link", "set", "cable", "name", INTERFACE)
        run("ip", "-n", host.namespace, "address", "add", address, "dev", INTERFACE)
        run("ip", "-n", host.namespace, "link", "set", INTERFACE, "up")
        forget_neighbours(hosts)


def _rename(host: Host, old: str, new: str, address: str) -> None:
    run("ip", "-n", host.namespace, "link", "set", old, "down")
    run("ip", "-n", host.namespace, "address", "delete", address, "dev", old)
    run("ip", "-n", host.namespace, "link", "set", old, "name", new)


def forget_neighbours(hosts: list[Host]) -> None:
    for host in hosts:
        run("ip", "-n", host.namespace, "neighbour", "flush", "all")


def switch_of(host: Host) -> str:
    return host.namespace.rpartition("-")[0] + "-switch"


@contextlib.contextmanager
def other_interface_first(host: Host) -> Iterator[str]:
    """The host's own name means an interface that leads nowhere, as 127.0.1.1 or a bridge's address often does."""
    address, switch = "192.168.77.2", switch_of(host)
    hosts_file = _FILES / host.namespace / "hosts"
    before = hosts_file.read_text()
    run("ip", "-n", host.namespace, "link", "add", "eno1", "type", "veth", "peer", "name", "nowhere", "netns", switch)
    try:
        run("ip", "-n", host.namespace, "address", "add", f"{address}/24", "dev", "eno1")
        run("ip", "-n", host.namespace, "link", "set", "eno1", "up")
        run("ip", "-n", switch, "link", "set", "nowhere", "up")
        hosts_file.write_text(f"{address} {host.name}\n{before}")
        yield "eno1"
    finally:
        hosts_file.write_text(before)
        run("ip", "-n", host.namespace, "link", "delete", "eno1")


@contextlib.contextmanager
def name_means(host: Host, name: str, address: str) -> Iterator[None]:
    """On this host, the name means another address than on the others."""
    hosts_file = _FILES / host.namespace / "hosts"
    before = hosts_file.read_text()
    others = [line for line in before.splitlines(keepends=True) if not line.rstrip().endswith(name)]
    hosts_file.write_text(f"{address} {name}\n" + "".join(others))
    try:
        yield
    finally:
        hosts_file.write_text(before)


@contextlib.contextmanager
def name_unknown(host: Host, name: str) -> Iterator[None]:
    """This host's /etc/hosts does not have the name, and there is no other resolver."""
    hosts_file = _FILES / host.namespace / "hosts"
    before = hosts_file.read_text()
    hosts_file.write_text("".join(line for line in before.splitlines(keepends=True) if not line.rstrip().endswith(name)))
    try:
        yield
    finally:
        hosts_file.write_text(before)


@contextlib.contextmanager
def memory_limit(name: str, limit: int) -> Iterator[list[str]]:
    """Words to put before a command that then may not use more; a cgroup of either version."""
    is_first_version = (_CGROUP / "memory").is_dir()
    folder = (_CGROUP / "memory" if is_first_version else _CGROUP) / name
    folder.mkdir()
    try:
        (folder / ("memory.limit_in_bytes" if is_first_version else "memory.max")).write_text(str(limit))
        # `ip netns exec` lays a /sys over the old one that shows no cgroups.
        first = f"mount -t tmpfs none {_CGROUP} && mkdir {_CGROUP}/memory && mount -t cgroup -o memory none {_CGROUP}/memory"
        show = first if is_first_version else f"mount -t cgroup2 none {_CGROUP}"
        yield ["sh", "-c", f'{show} && echo $$ > {folder}/cgroup.procs && exec "$@"', "sh"]
    finally:
        wait_for(lambda: not (folder / "cgroup.procs").read_text().strip())
        folder.rmdir()


def other_clock(folder: Path, seconds: int) -> dict[str, str]:
    """Variables that make a process see another time of day. `unshare -T` cannot: time namespaces leave CLOCK_REALTIME alone."""
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <time.h>\n"
        "int clock_gettime(clockid_t id, struct timespec *at) {\n"
        '  int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");\n'
        f"  int done = real(id, at);\n  if (id == CLOCK_REALTIME) at->tv_sec += {seconds};\n  return done;\n}}\n"
    )
    run("cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl")
    return {"LD_PRELOAD": str(library)}


def other_torch(folder: Path, version: str) -> list[str]:
    """Words to put before a command that then finds another version of torch: the file that says it is another one, on that host only."""
    import importlib.util

    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    real = Path(spec.origin).with_name("version.py")
    fake = folder / "version.py"
    fake.write_text(real.read_text() + f"\n__version__ = {version!r}\n")
    return ["sh", "-c", f'mount --bind {fake} {real} && exec "$@"', "sh"]


def has_link(namespace: str, name: str) -> bool:
    return subprocess.run(["ip", "-n", namespace, "link", "show", name], capture_output=True).returncode == 0


def wait_for(is_so: object, timeout_s: float = 10.0) -> None:
    assert callable(is_so)
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError("waited in vain for the lab")
        time.sleep(0.02)


def run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, env=dict(os.environ))
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
