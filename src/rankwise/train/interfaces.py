"""Which of this host's addresses a backend will offer to the other ranks, and which one leads to the store."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping

import psutil


def offered_address(backend: str, environ: Mapping[str, str]) -> str:
    """The address gloo tells its peers: of the interface the user named, else what the host's own name resolves to.

    NCCL chooses among the interfaces itself; the one that leads to the store is the best guess from outside.
    """
    wanted = environ.get("NCCL_SOCKET_IFNAME" if "nccl" in backend else "GLOO_SOCKET_IFNAME", "")
    if wanted:
        return address_of(wanted.split(",")[0].lstrip("=")) if not wanted.startswith("^") else ""
    if "nccl" in backend:
        return ""
    own = own_addresses()
    with contextlib.suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            if family in (socket.AF_INET, socket.AF_INET6) and (str(address[0]) in own or str(address[0]).startswith("127.")):
                return str(address[0])
    return "127.0.0.1"  # as gloo does when its host's name leads nowhere


def address_of(interface: str) -> str:
    """The interface's first address, IPv4 before IPv6; empty if there is no such interface or it has none."""
    found = {entry.family: entry.address.split("%")[0] for entry in reversed(psutil.net_if_addrs().get(interface, []))}
    return found.get(socket.AF_INET) or found.get(socket.AF_INET6) or ""


def own_addresses() -> dict[str, str]:
    """address: the interface it belongs to."""
    return {
        entry.address.split("%")[0]: name
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6)
    }


def route_to(address: str) -> str:
    """The address of this host that packets to `address` leave from; nothing is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return str(probe.getsockname()[0])
    return ""
