"""Finds out about this host what decides why a job does not start: names, ports, interfaces, memory."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from pathlib import Path

import psutil

from rankwise.evidence.records import HostFacts, PortHolder

_OOM_LINE = re.compile(r"(?:Killed process|Out of memory: Killed process) (\d+) \(([^)]*)\)")


def find_host_facts(addresses: set[str], ports: set[int]) -> HostFacts:
    """Look now; every look is bounded in time, and what cannot be found is left empty."""
    return HostFacts(
        name=socket.gethostname(),
        unresolved=tuple(sorted(name for name in addresses if name and not _resolves(name))),
        holders=tuple(holder for port in sorted(ports) for holder in find_port_holders(port)),
        interfaces=tuple(sorted(psutil.net_if_addrs())),
        oom_kills=tuple(_oom_kills()),
        memory_limit=_cgroup_number("memory.max"),
        shm_free=_free_bytes("/dev/shm"),
        load_per_core=os.getloadavg()[0] / (os.cpu_count() or 1),
    )


def find_port_holders(port: int) -> list[PortHolder]:
    """The processes that listen on a TCP port of this host."""
    holders = []
    try:
        connections = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return []
    for link in connections:
        if link.status == "LISTEN" and link.laddr and link.laddr.port == port:
            name, command = "", ""
            if link.pid:
                with contextlib.suppress(psutil.Error):
                    process = psutil.Process(link.pid)
                    name, command = process.name(), " ".join(process.cmdline())[:300]
            holders.append(PortHolder(port, link.pid, name, command))
    return holders


def oom_count() -> int:
    """How often the kernel killed in this cgroup for want of memory, so far."""
    try:
        text = Path("/sys/fs/cgroup/memory.events").read_text()
    except OSError:
        return 0
    match = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(match[1]) if match else 0


def _resolves(name: str, timeout_s: float = 3.0) -> bool:
    """True unless the name is known not to resolve; a resolver that does not answer in time proves nothing."""
    result: list[bool] = []

    def ask() -> None:
        try:
            socket.getaddrinfo(name, None)
            result.append(True)
        except socket.gaierror:
            result.append(False)
        except (OSError, UnicodeError):
            result.append(False)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return result[0] if result else True


def _oom_kills() -> list[dict[str, object]]:
    """Kills for want of memory that the kernel log mentions (where it may be read)."""
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return []
    kills: list[dict[str, object]] = []
    try:
        while True:
            match = _OOM_LINE.search(os.read(fd, 8192).decode(errors="replace"))
            if match:
                kills.append({"pid": int(match[1]), "name": match[2]})
    except OSError:
        pass
    finally:
        os.close(fd)
    return kills


def _cgroup_number(name: str) -> int | None:
    try:
        text = Path(f"/sys/fs/cgroup/{name}").read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _free_bytes(path: str) -> int | None:
    try:
        stats = os.statvfs(path)
    except OSError:
        return None
    return stats.f_bavail * stats.f_frsize
