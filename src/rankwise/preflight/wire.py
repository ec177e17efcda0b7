"""How hosts talk during a check: short JSON messages over TCP, bounded in size and time, in segments small enough for a damaged path."""

from __future__ import annotations

import hashlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

GREETING = b"rankwise check 1\n"
MAX_MESSAGE = 8 << 20
MAX_HELLO = 64 << 10
MAX_GUESTS = 64  # at once, at all ports of a host together

Message = dict[str, Any]


class ConnectionLost(OSError):
    """The other host closed the connection, sent no valid message, or did not answer in time."""


def token_of(job_id: str) -> str:
    """A token that all hosts of a job share: it tells jobs apart and is not a secret."""
    return hashlib.blake2s(job_id.encode(), person=b"rwcheck").hexdigest()


def send_message(sock: socket.socket, message: Message, timeout_s: float) -> None:
    data = json.dumps(message, allow_nan=False, default=str).encode()
    sock.settimeout(max(0.01, timeout_s))
    try:
        sock.sendall(struct.pack("!I", len(data)) + data)
    except OSError as error:
        raise ConnectionLost(f"could not send: {error}") from error


def receive_message(sock: socket.socket, timeout_s: float, largest: int = MAX_MESSAGE) -> Message:
    deadline = time.monotonic() + timeout_s
    (size,) = struct.unpack("!I", receive_exactly(sock, 4, deadline))
    if size > largest:
        raise ConnectionLost(f"a message of {size} bytes was announced")
    try:
        message = json.loads(receive_exactly(sock, size, deadline), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ConnectionLost("what came was not a message") from error
    if not isinstance(message, dict):
        raise ConnectionLost("what came was not a message")
    return message


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a number")


def receive_exactly(sock: socket.socket, size: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise ConnectionLost("no answer in time")
        sock.settimeout(left)
        try:
            part = sock.recv(min(size - len(data), 1 << 16))
        except OSError as error:
            raise ConnectionLost(str(error) or "no answer in time") from error
        if not part:
            raise ConnectionLost("the other side has closed the connection")
        data += part
    return bytes(data)


def accept_all(listener: socket.socket, slots: threading.Semaphore, serve: Callable[[socket.socket, str], None]) -> None:
    """Give each connection and its address to `serve`, in a thread, until the listener is closed; without a free slot it is closed."""

    def serve_one(sock: socket.socket, address: str) -> None:
        try:
            serve(sock, address)
        finally:
            slots.release()

    def accept() -> None:
        while True:
            try:
                sock, address = listener.accept()
            except OSError:
                return
            if slots.acquire(blocking=False):
                threading.Thread(target=serve_one, args=(sock, str(address[0])), daemon=True, name="check-guest").start()
            else:
                sock.close()

    threading.Thread(target=accept, daemon=True, name="check-listener").start()
