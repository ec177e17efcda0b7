"""This host's network as the kernel tells it: names, routes, interfaces, and which of them gloo and NCCL would use."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import psutil

from rankwise.meet.threads import ThreadTask

_RESOLVE_S = 5.0
_FAMILIES = (socket.AF_INET, socket.AF_INET6)


@dataclass(frozen=True)
class Interface:
    """One interface: its addresses (IPv4 first), whether it is up, the largest packet it takes."""

    name: str
    addresses: tuple[str, ...]
    is_up: bool
    mtu: int


@dataclass(frozen=True)
class Resolved:
    """What a name resolves to; `error` where it does not resolve, `slow` where the resolver did not answer in time."""

    addresses: tuple[str, ...] = ()
    error: str = ""
    is_slow: bool = False


def resolve(name: str, timeout_s: float = _RESOLVE_S) -> Resolved:
    """Ask the system's resolver, and stop waiting after `timeout_s`: a resolver that is down can take minutes."""
    task = ThreadTask(lambda: socket.getaddrinfo(name, None, type=socket.SOCK_STREAM), "resolve")
    if not task.wait(timeout_s):
        return Resolved(error=f"no answer from the resolver within {timeout_s:g} s", is_slow=True)
    if error := task.error:
        return Resolved(error=(isinstance(error, socket.gaierror) and error.strerror) or str(error)[:200])
    return Resolved(tuple(dict.fromkeys(str(answer[4][0]) for answer in task.result or ())))


def interfaces() -> list[Interface]:
    """The interfaces in the kernel's order, which is the order in which NCCL tries them."""
    addresses, stats = psutil.net_if_addrs(), psutil.net_if_stats()
    found = []
    for _, name in socket.if_nameindex():
        own = sorted((a for a in addresses.get(name, ()) if a.family in _FAMILIES), key=lambda a: a.family != socket.AF_INET)
        state = stats.get(name)
        found.append(
            Interface(name, tuple(a.address.partition("%")[0] for a in own), bool(state and state.isup), state.mtu if state else 0)
        )
    return found


def source_address(target: str) -> str:
    """The address from which this host would reach the target; empty where there is no route. Sends nothing."""
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((target, 9))
        return str(probe.getsockname()[0]).partition("%")[0]
    return ""


def interface_of(address: str, known: list[Interface]) -> Interface | None:
    return next((interface for interface in known if address and address in interface.addresses), None)


def is_own(address: str, known: list[Interface]) -> bool:
    return is_loopback(address) or interface_of(address, known) is not None


def own_addresses(name: str, addresses: tuple[str, ...], known: list[Interface]) -> list[str]:
    """The addresses of a name at which this host can be found; empty where it is another host's name.

    Many systems resolve their own name to 127.0.1.1, at which no other host finds them; then all addresses of this host count.
    """
    own = [address for address in addresses if is_own(address, known)]
    outside = [address for address in own if not is_loopback(address)]
    if outside or not own or name in ("localhost", *own):
        return outside or own
    usable = [address for interface in known if interface.is_up for address in interface.addresses]
    return [address for address in usable if not is_loopback(address) and not address.startswith("fe80")] + own


def is_loopback(address: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return False


def gloo_interface(environ: Mapping[str, str], hostname: str, known: list[Interface]) -> tuple[str, str, str]:
    """Interface and address that gloo would offer to the other ranks, and what decides it.

    Without its variable gloo takes the first address of the host's own name that it can bind, else loopback.
    """
    if value := environ.get("GLOO_SOCKET_IFNAME", ""):
        first = value.split(",")[0]
        chosen = next((interface for interface in known if interface.name == first), None)
        return first, chosen.addresses[0] if chosen and chosen.addresses else "", f"GLOO_SOCKET_IFNAME={value}"
    for address in resolve(hostname).addresses:
        if _can_bind(address):
            own = interface_of(address, known)
            return own.name if own else "lo", address, f"the host name {hostname} resolves to {address}"
    return "lo", "127.0.0.1", f"the host name {hostname} resolves to no address of this host"


def nccl_interface(environ: Mapping[str, str], known: list[Interface]) -> tuple[str, str, str]:
    """The first interface NCCL would use for its sockets, its address, and what decides it."""
    usable = [interface for interface in known if interface.is_up and interface.addresses]
    if value := environ.get("NCCL_SOCKET_IFNAME", ""):
        usable = [interface for interface in usable if nccl_matches(value, interface.name)]
    first = min(usable, key=lambda interface: 0 if value else _dislike(interface.name), default=None)
    why = f"NCCL_SOCKET_IFNAME={value}" if value else "the first that is up" if first else "no interface is up"
    return (first.name, first.addresses[0], why) if first else ("", "", why)


def _dislike(name: str) -> int:
    """NCCL takes InfiniBand first, Docker's own late, loopback last."""
    return 0 if name.startswith("ib") else 3 if name.startswith("lo") else 2 if name.startswith("docker") else 1


def nccl_matches(value: str, name: str) -> bool:
    """NCCL's syntax: prefixes separated by commas, `=` in front for whole names, `^` in front for all but these."""
    is_excluding = value.startswith("^")
    rest = value.removeprefix("^")
    is_exact = rest.startswith("=")
    words = [word for word in rest.removeprefix("=").split(",") if word]
    is_named = any(name == word.partition(":")[0] if is_exact else name.startswith(word.partition(":")[0]) for word in words)
    return is_named != is_excluding


def missing_interface(variable: str, value: str, there: Collection[str]) -> str:
    """The interface that a variable names and this host lacks; empty where none is missing. gloo needs all in the list, NCCL any one."""
    if variable.startswith("NCCL"):
        return "" if not value or any(nccl_matches(value, name) for name in there) else value
    return next((word for word in value.split(",") if word and word not in there), "")


def _can_bind(address: str) -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        return True
    return False
