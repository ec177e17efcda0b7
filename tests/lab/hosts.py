"""Several hosts on one machine: network namespaces behind one switch, each with its own address, loopback, hostname and /etc/hosts.

Everything lives in namespaces called rankwise-test-<pid>-…, so nothing of it can be mistaken for the machine's own network, and the guard
in conftest sees what was left behind. Needs root and iproute2; `why_no_lab` says what is missing.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

INTERFACE = "eth0"
_NAMES = "abcd"
_FILES = Path("/etc/netns")  # `ip netns exec` lays what is below it over /etc
_NAMESPACES = Path("/run/netns")
_labs = itertools.count()


def why_no_lab() -> str:
    """What keeps this machine from playing several; empty when it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "unshare") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not found (iproute2, util-linux)"
    tried = subprocess.run(["unshare", "--net", "--uts", "--mount", "ip", "link", "add", "type", "veth"], capture_output=True, text=True)
    return f"this machine gives no namespaces: {tried.stderr.strip()}" if tried.returncode else ""


@dataclass
class Host:
    """One of the hosts; what is started here sees its network and its hostname only."""

    name: str
    namespace: str
    address: str
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(
        self, command: Sequence[str | Path], env: Mapping[str, str] | None = None, output: IO[bytes] | int = subprocess.DEVNULL, **rest: Any
    ) -> subprocess.Popen[bytes]:
        inside = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.name]
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, *inside, *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "GLOO_SOCKET_IFNAME": INTERFACE, **(env or {})},
            **rest,
        )
        self.processes.append(process)
        return process

    def pids(self) -> list[int]:
        """Every process on this host, whoever its parent is."""
        done = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True)
        return [int(pid) for pid in done.stdout.split()]

    def pull_the_plug(self) -> None:
        """Everything that runs here is gone at once, as when the machine loses power."""
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that nobody sees the others go
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        deadline = time.monotonic() + 10
        while (left := self.pids()) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        for process in self.processes:
            process.wait(10)


@contextlib.contextmanager
def lab(num_hosts: int) -> Iterator[list[Host]]:
    """Hosts node-a, node-b, … that reach each other by address and by name; they are gone when the block ends, whatever happened in it."""
    run = f"rankwise-test-{os.getpid()}-{next(_labs)}"
    hosts = [Host(f"node-{x}", f"{run}-{x}", f"10.77.0.{i}") for i, x in enumerate(_NAMES[:num_hosts], 1)]
    switch = f"{run}-switch"
    _sweep()
    try:
        _build(hosts, switch)
        yield hosts
    finally:
        _tear_down([*hosts, Host("switch", switch, "")])


def _build(hosts: list[Host], switch: str) -> None:
    _ip("netns", "add", switch)
    _ip("-n", switch, "link", "add", "switch", "type", "bridge")
    _ip("-n", switch, "link", "set", "switch", "up")
    names = "".join(f"{host.address} {host.name}\n" for host in hosts)
    for i, host in enumerate(hosts):
        files = _FILES / host.namespace
        files.mkdir(parents=True)
        (files / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        _ip("netns", "add", host.namespace)
        _ip("-n", switch, "link", "add", f"port{i}", "type", "veth", "peer", "name", INTERFACE, "netns", host.namespace)
        _ip("-n", switch, "link", "set", f"port{i}", "master", "switch", "up")
        _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", INTERFACE)
        _ip("-n", host.namespace, "link", "set", INTERFACE, "up")
        _ip("-n", host.namespace, "link", "set", "lo", "up")


def _sweep() -> None:
    """Remove what a test run left that was killed before it could tidy up."""
    left = [path.name for folder in (_NAMESPACES, _FILES) if folder.is_dir() for path in folder.glob("rankwise-test-*")]
    for name in dict.fromkeys(left):
        if not Path(f"/proc/{name.split('-')[2]}").exists():
            _tear_down([Host("", name, "")])


def _tear_down(hosts: list[Host]) -> None:
    """A namespace lives on as long as a process is in it: so these first."""
    for host in hosts:
        with contextlib.suppress(subprocess.TimeoutExpired):
            host.pull_the_plug()
    for host in hosts:
        subprocess.run(["ip", "netns", "delete", host.namespace], capture_output=True)
        shutil.rmtree(_FILES / host.namespace, ignore_errors=True)
    with contextlib.suppress(OSError):
        _FILES.rmdir()


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
