"""Accepts the other hosts of a check: listens at the rendezvous port and next to it, and turns hosts of other jobs away."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from rankwise.meet.ports import keep_segments_small
from rankwise.preflight.wire import (
    GREETING,
    MAX_GUESTS,
    MAX_HELLO,
    ConnectionLost,
    Message,
    accept_all,
    receive_exactly,
    receive_message,
    send_message,
)

NUM_PORTS = 4  # the rendezvous port, and the next three in case it is held or blocked
_HELLO_S = 8.0
_SEND_S = 10.0


@dataclass
class RemoteHost:
    """A host that joined: its connection, its first message, and when it came."""

    sock: socket.socket
    hello: Message
    address: str
    arrived_at: float
    is_gone: bool = False

    def ask(self, message: Message, timeout_s: float) -> Message | None:
        """The host's answer; None if there is none in time. Then it is not asked again: a late answer would be taken for the next one."""
        if self.is_gone:
            return None
        try:
            send_message(self.sock, message, min(timeout_s, _SEND_S))
            return receive_message(self.sock, timeout_s)
        except ConnectionLost:
            self.leave()
            return None

    def tell(self, message: Message) -> None:
        if not self.is_gone:
            try:
                send_message(self.sock, message, _SEND_S)
            except ConnectionLost:
                self.leave()

    def leave(self) -> None:
        self.is_gone = True
        with contextlib.suppress(OSError):
            self.sock.close()


class MeetingListener:
    """Open from the first to `close`. `greet` decides on each hello: None lets the host in, a message refuses it."""

    def __init__(self, addresses: list[str], first_port: int, greet: Callable[[Message, str], Message | None]) -> None:
        self._greet = greet
        self._lock = threading.Lock()
        self._hosts: list[RemoteHost] = []
        self._slots = threading.Semaphore(MAX_GUESTS)
        self._listeners: list[socket.socket] = []
        self.ports: list[int] = []
        for port in range(first_port, min(first_port + NUM_PORTS, 65536)):
            for address in addresses:
                with contextlib.suppress(OSError):
                    self._open(address, port)

    def hosts(self) -> list[RemoteHost]:
        with self._lock:
            return [host for host in self._hosts if not host.is_gone]

    def close(self) -> None:
        """Accept no more hosts; those that have joined stay connected."""
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self._listeners.clear()

    def _open(self, address: str, port: int) -> None:
        listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            keep_segments_small(listener)
            listener.bind((address, port))
            listener.listen(128)
        except OSError:
            listener.close()
            raise
        self._listeners.append(listener)
        self.ports = sorted({*self.ports, port})
        accept_all(listener, self._slots, self._receive)

    def _receive(self, sock: socket.socket, address: str) -> None:
        try:
            keep_segments_small(sock)
            sock.sendall(GREETING)
            if receive_exactly(sock, len(GREETING), time.monotonic() + _HELLO_S) != GREETING:
                raise ConnectionLost("not one of us")
            hello = receive_message(sock, _HELLO_S, MAX_HELLO)
            answer = self._greet(hello, address)
            if answer is not None:
                send_message(sock, answer, _SEND_S)
                sock.close()
                return
            with self._lock:  # both at once: whoever has been told so is among `hosts`
                send_message(sock, {"in": True}, _SEND_S)
                self._hosts.append(RemoteHost(sock, hello, address, time.monotonic()))
        except OSError:
            sock.close()
