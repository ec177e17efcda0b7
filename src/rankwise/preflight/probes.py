"""The sockets by which others measure a host: a TCP port the system picks, one for UDP echoes, and one at the address gloo would offer."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from rankwise.preflight.wire import MAX_GUESTS, accept_all, receive_exactly

TOKEN_BYTES = 16
BULK_S = 0.4
CHUNK = 1 << 18
UDP_HEAD = struct.Struct(f"!{TOKEN_BYTES}sII")  # token, run, number; the answer has how many came so far in place of the run
TALLY = struct.Struct("!Qd")  # bytes that arrived, seconds they took
_ASK_S = 5.0
_STALL_S = 2.5  # without a byte for so long, a transfer has failed
_MAX_RUNS = 256
_PMTUDISC, _PROBE = 10, 3  # IP_MTU_DISCOVER, IP_PMTUDISC_PROBE: "do not fragment", and no opinion of our own about the path


def forbid_fragments(sock: socket.socket) -> None:
    level, option = (socket.IPPROTO_IPV6, 23) if sock.family == socket.AF_INET6 else (socket.IPPROTO_IP, _PMTUDISC)
    with contextlib.suppress(OSError):
        sock.setsockopt(level, option, _PROBE)


class Probes:
    """Listens from `open` to `close`, at the given addresses only, and answers only who knows the token of this meeting."""

    def __init__(self, address: str, gloo_address: str) -> None:
        self.address, self.gloo_address = address, gloo_address
        self.port = self.gloo_port = self.udp_port = 0
        self.token = b""
        self._sockets: list[socket.socket] = []
        self._slots = threading.Semaphore(MAX_GUESTS)
        self._is_closed = threading.Event()

    def open(self) -> None:
        """Raises OSError where the address is not this host's."""
        listener = self._listen(self.address)
        self.port = listener.getsockname()[1]
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        udp = socket.socket(family, socket.SOCK_DGRAM)
        self._sockets.append(udp)
        udp.bind((self.address, 0))
        forbid_fragments(udp)
        self.udp_port = udp.getsockname()[1]
        threading.Thread(target=self._echo, args=(udp,), daemon=True, name="check-echo").start()
        self.gloo_port = self.port
        if self.gloo_address and self.gloo_address != self.address:
            with contextlib.suppress(OSError):
                self.gloo_port = self._listen(self.gloo_address).getsockname()[1]

    def close(self) -> None:
        self._is_closed.set()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # wakes threads that wait in accept or recv
            sock.close()

    def offer(self) -> dict[str, str | int]:
        """The addresses and ports that the others need to measure links to this host."""
        return {
            "address": self.address,
            "port": self.port,
            "udp_port": self.udp_port,
            "gloo_address": self.gloo_address,
            "gloo_port": self.gloo_port,
        }

    def _listen(self, address: str) -> socket.socket:
        listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET, backlog=64)
        self._sockets.append(listener)
        accept_all(listener, self._slots, self._serve)
        return listener

    def _serve(self, client: socket.socket, _: str) -> None:
        with client, contextlib.suppress(OSError):
            ask = receive_exactly(client, TOKEN_BYTES + 1, time.monotonic() + _ASK_S)
            if not self.token or ask[:TOKEN_BYTES] != self.token:
                return
            if ask[TOKEN_BYTES:] == b"K":
                client.sendall(b"k")
            elif ask[TOKEN_BYTES:] == b"U":
                client.sendall(TALLY.pack(*receive_bulk(client)))
                drain(client)  # the sender stops when it has read this
            elif ask[TOKEN_BYTES:] == b"D":
                send_bulk(client, lambda: False)

    def _echo(self, udp: socket.socket) -> None:
        """Send every packet back at its own size, with the number of packets of its run that came so far."""
        counts: OrderedDict[tuple[object, int], int] = OrderedDict()
        while not self._is_closed.is_set():
            try:
                data, sender = udp.recvfrom(65535)
            except OSError:
                if self._is_closed.is_set():
                    return
                continue
            if len(data) < UDP_HEAD.size or not self.token:
                continue
            token, run, number = UDP_HEAD.unpack_from(data)
            if token != self.token:
                continue
            key = (sender, run)
            counts[key] = counts.get(key, 0) + 1
            if len(counts) > _MAX_RUNS:
                counts.popitem(last=False)
            with contextlib.suppress(OSError):
                udp.sendto(UDP_HEAD.pack(token, counts[key], number) + data[UDP_HEAD.size :], sender)


def receive_bulk(sock: socket.socket) -> tuple[int, float]:
    """Bytes that arrive within BULK_S of the first one, and the seconds they took."""
    buffer = bytearray(1 << 20)
    sock.settimeout(_STALL_S)
    total = sock.recv_into(buffer)
    started = time.perf_counter()
    spent = 0.0
    while total and spent < BULK_S:
        sock.settimeout(max(0.001, BULK_S - spent))
        try:
            count = sock.recv_into(buffer)
        except TimeoutError:
            return total, BULK_S
        total += count
        spent = time.perf_counter() - started
        if not count:
            break
    return total, max(spent, 1e-6)


def send_bulk(sock: socket.socket, is_enough: Callable[[], bool]) -> None:
    """Send for a little longer than the other side counts, or until it is enough; then drop what is still on its way."""
    chunk = os.urandom(1 << 12) * (CHUNK >> 12)  # random, so that nothing on the way compresses it
    deadline = time.monotonic() + BULK_S + _STALL_S
    sock.setblocking(False)
    try:
        while not is_enough() and (left := deadline - time.monotonic()) > 0:
            _, writable, _ = select.select([], [sock], [], min(left, 0.05))
            if writable:
                sock.send(chunk)
    except OSError:
        return  # the measuring side has enough and has closed
    finally:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def drain(sock: socket.socket) -> None:
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        sock.settimeout(0.2)
        try:
            if not sock.recv(CHUNK):
                return
        except TimeoutError:
            continue
