"""Gathers facts of this host that explain why a job does not start: names, ports, interfaces, memory."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
from pathlib import Path

from rankwise.evidence.records import HostFacts, PortHolder
from rankwise.meet.network import interfaces, resolve
from rankwise.meet.ports import find_listeners

_RESOLVE_S = 3.0
_OOM_LINE = re.compile(r"(?:Killed process|Out of memory: Killed process) (\d+) \(([^)]*)\)")


def find_host_facts(addresses: set[str], ports: set[int]) -> HostFacts:
    """Look now; every look is bounded in time, and what cannot be found is left empty."""
    holders = (PortHolder(port, found.pid, found.program, found.command) for port in sorted(ports) for found in find_listeners(port))
    return HostFacts(
        name=socket.gethostname(),
        unresolved=tuple(sorted(name for name in addresses if name and not _resolves(name))),
        holders=tuple(holders),
        interfaces=tuple(sorted(interface.name for interface in interfaces())),
        oom_kills=tuple(_oom_kills()),
        shm_free=_free_bytes("/dev/shm"),
    )


def oom_count() -> int:
    """How often the kernel has killed a process in this cgroup because memory ran out."""
    try:
        text = Path("/sys/fs/cgroup/memory.events").read_text()
    except OSError:
        return 0
    match = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(match[1]) if match else 0


def _resolves(name: str) -> bool:
    """True unless the name is known not to resolve; a resolver that does not answer in time proves nothing."""
    found = resolve(name, _RESOLVE_S)
    return bool(found.addresses) or found.is_slow


def _oom_kills() -> list[dict[str, object]]:
    """Out-of-memory kills that the kernel log mentions (where it may be read)."""
    kills: list[dict[str, object]] = []
    with (
        contextlib.suppress(OSError),
        open("/dev/kmsg", "rb", buffering=0, opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as log,
    ):
        while line := log.read(8192):
            if match := _OOM_LINE.search(line.decode(errors="replace")):
                kills.append({"pid": int(match[1]), "name": match[2]})
    return kills


def _free_bytes(path: str) -> int | None:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None
