"""Measures the link to another host's probes: reachability, latency, loss, the largest packet, bandwidth."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from rankwise.meet.ports import connect
from rankwise.meet.threads import run_all
from rankwise.preflight.facts import Facts
from rankwise.preflight.measured import has_swallowed
from rankwise.preflight.probes import TALLY, UDP_HEAD, forbid_fragments, receive_bulk, send_bulk
from rankwise.preflight.wire import ConnectionLost, receive_exactly

_CONNECT_S = 4.0
_PACKETS, _SPACING_S = 100, 0.004
_LAST_S = 1.0  # how long to wait for the echo of the last packet
_VOLLEY = 8
_SIZES = (8972, 4072, 1472, 1452, 1422, 1392, 1372, 1252, 1172, 972, 548)
_LARGEST_MTU = 9000
_SMALL = 64
LINK_NUMBERS = ("rtt_s", "lost_out", "lost_back", "largest", "wanted", "up", "down")


def probe_ports(peers: dict[str, dict[str, Any]], token: bytes) -> dict[str, Facts]:
    """Try every peer's high port, and the one at the address gloo would offer; all at once."""
    own = {name: (str(peer["address"]), int(peer["port"])) for name, peer in peers.items()}
    offered = {name: (str(peer["gloo_address"]), int(peer["gloo_port"])) for name, peer in peers.items()}
    calls = {(name, way): partial(_probe, *way, token) for ways in (own, offered) for name, way in ways.items()}
    found = run_all(calls, _CONNECT_S + 6.0)
    silent = False, "no answer"
    answers = {name: (found.get((name, own[name]), silent), found.get((name, offered[name]), silent)) for name in peers}
    return {name: {"high": high[0], "gloo": gloo[0], "how": high[1]} for name, (high, gloo) in answers.items()}


def _probe(address: str, port: int, token: bytes) -> tuple[bool, str]:
    """Try one port: it counts as open only if the right host answers, since gloo's address may belong to another host seen from here."""
    sock, how = connect(address, port, _CONNECT_S)
    if sock is None:
        return False, how
    with sock:
        try:
            sock.sendall(token + b"K")
            return receive_exactly(sock, 1, time.monotonic() + 5.0) == b"k", "connected"
        except (ConnectionLost, OSError):
            return False, "something else answers there"


def measure_link(peer: dict[str, Any], token: bytes, mtu: int) -> Facts:
    """All measures of one link, quiet ones first; what could not be measured is None."""
    facts: Facts = dict.fromkeys(LINK_NUMBERS) | {"error": ""}
    address = str(peer["address"])
    try:
        facts |= _measure_packets(address, int(peer["udp_port"]), token)
        if facts["lost_out"] is not None:
            facts |= _measure_sizes(address, int(peer["udp_port"]), token, min(mtu or 1500, int(peer.get("mtu") or 1500), _LARGEST_MTU))
        if has_swallowed(facts):  # a bulk transfer would not get through
            facts["error"] = "large packets vanish there"
            return facts
        facts |= _measure_bulk(address, int(peer["port"]), token)
    except OSError as error:
        facts["error"] = error.strerror or str(error)
    return facts


# -- packets ------------------------------------------------------------------------------------------------------------------


def _measure_packets(address: str, port: int, token: bytes) -> Facts:
    """Send small packets at an even pace; their echoes give the quickest round trip, and the loss in each direction."""
    run = int.from_bytes(os.urandom(4), "big")
    sent_at: list[float] = []
    best: float | None = None
    seen: set[int] = set()
    furthest, counted = -1, 0
    with _udp(address, port) as sock:
        for number in range(_PACKETS):
            sent_at.append(time.perf_counter())
            with contextlib.suppress(OSError):
                sock.send(UDP_HEAD.pack(token, run, number).ljust(_SMALL, b"\0"))
            pause_until = sent_at[0] + (number + 1) * _SPACING_S
            last = number == _PACKETS - 1
            for data, at in _echoes(sock, pause_until + (_LAST_S if last else 0.0), enough=lambda: len(seen) == _PACKETS):
                _, count, echoed = UDP_HEAD.unpack_from(data)
                if echoed < len(sent_at) and echoed not in seen:
                    seen.add(echoed)
                    spent = at - sent_at[echoed]
                    best = spent if best is None else min(best, spent)
                    if echoed > furthest:
                        furthest, counted = echoed, count
    if not seen:
        return {}
    # The echo of the latest packet says how many had arrived by then; packets sent after it do not count: they may still be on the way.
    lost_out = max(0.0, 1 - counted / (furthest + 1))
    lost_back = max(0.0, 1 - len(seen) / max(1, counted))
    return {"rtt_s": best, "lost_out": round(lost_out, 3), "lost_back": round(lost_back, 3)}


def _measure_sizes(address: str, port: int, token: bytes, mtu: int) -> Facts:
    headers = 48 if ":" in address else 28
    wanted = mtu - headers
    smaller = [size for size in (*_SIZES, _SMALL) if size < wanted]
    largest = _largest_echo(address, port, token, [wanted]) or _largest_echo(address, port, token, smaller) or _SMALL
    return {"largest": largest, "wanted": wanted}


def _largest_echo(address: str, port: int, token: bytes, sizes: list[int]) -> int:
    """The largest of these sizes that came back; 0 where none did."""
    run = int.from_bytes(os.urandom(4), "big")
    found: set[int] = set()
    with _udp(address, port) as sock:
        for size in sizes:
            for _ in range(_VOLLEY):
                with contextlib.suppress(OSError):  # the packet is larger than our own interface takes
                    sock.send(UDP_HEAD.pack(token, run, size).ljust(size, b"\0"))
        for data, _ in _echoes(sock, time.perf_counter() + _LAST_S, enough=lambda: sizes[0] in found):
            found.add(len(data))
    return max(found, default=0)


@contextlib.contextmanager
def _udp(address: str, port: int) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as sock:
        forbid_fragments(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        sock.connect((address, port))
        yield sock


def _echoes(sock: socket.socket, until: float, enough: Callable[[], bool]) -> Iterator[tuple[bytes, float]]:
    """The packets that come until a time, or until there are enough, each with when it came."""
    while not enough() and (left := until - time.perf_counter()) > 0:
        readable, _, _ = select.select([sock], [], [], left)
        if not readable:
            return
        try:
            data = sock.recv(65535)
        except OSError:  # the other host reports that no process listens there
            time.sleep(min(0.01, max(0.0, left)))
            continue
        if len(data) >= UDP_HEAD.size:
            yield data, time.perf_counter()


# -- bulk ---------------------------------------------------------------------------------------------------------------------


def _measure_bulk(address: str, port: int, token: bytes) -> Facts:
    """Bytes per second in both directions, counted where they arrive; 0 where a connection opens and nothing gets through."""
    up_sock, how = connect(address, port, _CONNECT_S)
    if up_sock is None:
        return {"error": f"TCP: {how}"}
    facts: Facts = {"up": 0.0, "down": 0.0}
    with up_sock, contextlib.suppress(ConnectionLost, OSError, struct.error):
        up_sock.sendall(token + b"U")
        send_bulk(up_sock, lambda: bool(select.select([up_sock], [], [], 0)[0]))
        up_sock.setblocking(True)
        count, spent = TALLY.unpack(receive_exactly(up_sock, TALLY.size, time.monotonic() + 2.0))
        facts["up"] = count / spent
    down_sock, _ = connect(address, port, _CONNECT_S)
    if down_sock is not None:
        with down_sock, contextlib.suppress(OSError):
            down_sock.sendall(token + b"D")
            count, spent = receive_bulk(down_sock)
            down_sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            facts["down"] = count / spent
    return facts
