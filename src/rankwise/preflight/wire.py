"""How hosts talk during a check: short JSON messages over TCP, bounded in size and time, in segments small enough for a damaged path."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import select
import socket
import struct
import time
from typing import Any

GREETING = b"rankwise check 1\n"
MAX_MESSAGE = 8 << 20
MAX_HELLO = 64 << 10
_SEGMENT = 536  # what every path carries: a path that swallows large packets must not swallow our words about it
_FIRST_TRY_S = 1.0
_SYNS = 4

Message = dict[str, Any]


class Gone(OSError):
    """The other side has closed, sent something else than a message, or did not answer in time."""


def token_of(job_id: str) -> str:
    """What hosts of one job have in common; tells jobs apart, keeps nobody out who knows the id."""
    return hashlib.blake2s(job_id.encode(), person=b"rwcheck").hexdigest()


def keep_segments_small(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SEGMENT)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def send_message(sock: socket.socket, message: Message, timeout_s: float) -> None:
    data = json.dumps(message, allow_nan=False, default=str).encode()
    sock.settimeout(max(0.01, timeout_s))
    try:
        sock.sendall(struct.pack("!I", len(data)) + data)
    except OSError as error:
        raise Gone(f"could not send: {error}") from error


def receive_message(sock: socket.socket, timeout_s: float, largest: int = MAX_MESSAGE) -> Message:
    deadline = time.monotonic() + timeout_s
    (size,) = struct.unpack("!I", receive_exactly(sock, 4, deadline))
    if size > largest:
        raise Gone(f"a message of {size} bytes was announced")
    try:
        message = json.loads(receive_exactly(sock, size, deadline), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise Gone("what came was no message") from error
    if not isinstance(message, dict):
        raise Gone("what came was no message")
    return message


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number")


def receive_exactly(sock: socket.socket, size: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise Gone("no answer in time")
        sock.settimeout(left)
        try:
            part = sock.recv(min(size - len(data), 1 << 16))
        except OSError as error:
            raise Gone(str(error) or "no answer in time") from error
        if not part:
            raise Gone("the other side has closed the connection")
        data += part
    return bytes(data)


def connect(address: str, port: int, timeout_s: float, *, source: str = "", small: bool = False) -> tuple[socket.socket | None, str]:
    """A connection, or None and how it failed: `refused`, `no answer`, `unreachable`, …

    Where the first packet is not answered within a second, several more connections are tried at once: on a path that loses a third of its
    packets a single one fails now and then, and would look like a firewall.
    """
    found, how = _connect_any(address, port, min(timeout_s, _FIRST_TRY_S), 1, source, small)
    if found is None and how == "no answer" and timeout_s > _FIRST_TRY_S:
        return _connect_any(address, port, timeout_s - _FIRST_TRY_S, _SYNS, source, small)
    return found, how


def _connect_any(address: str, port: int, timeout_s: float, tries: int, source: str, small: bool) -> tuple[socket.socket | None, str]:
    waiting: list[socket.socket] = []
    how = "no answer"
    try:
        for _ in range(tries):
            sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
            waiting.append(sock)
            if small:
                keep_segments_small(sock)
            if source:
                sock.bind((source, 0))
            sock.setblocking(False)
            code = sock.connect_ex((address, port))
            if code not in (0, errno.EINPROGRESS):
                return None, _how(code)
        deadline = time.monotonic() + timeout_s
        while waiting and (left := deadline - time.monotonic()) > 0:
            _, ready, _ = select.select([], waiting, [], left)
            for sock in ready:
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                waiting.remove(sock)
                if code == 0:
                    sock.setblocking(True)
                    return sock, "connected"
                sock.close()
                how = _how(code)
                if how != "no answer":
                    return None, how
        return None, how
    except OSError as error:
        return None, _how(error.errno or 0)
    finally:
        for sock in waiting:
            sock.close()


def _how(code: int) -> str:
    known = {
        errno.ECONNREFUSED: "connection refused",
        errno.ETIMEDOUT: "no answer",
        errno.EHOSTUNREACH: "host unreachable",
        errno.ENETUNREACH: "network unreachable",
        errno.EACCES: "not permitted",
        errno.EPERM: "not permitted",
    }
    return known.get(code, errno.errorcode.get(code, f"error {code}"))
