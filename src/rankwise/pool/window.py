"""Lets `rankwise top` look into a running pool: a socket without a file, so that nothing is left when the process dies."""

from __future__ import annotations

import json
import os
import socket
import struct
from pathlib import Path
from typing import Any

_PREFIX = "rankwise-pool-"
_TIMEOUT_S = 2.0


def open_window(number: int) -> socket.socket | None:
    """A listening socket in the abstract namespace; None where there is none, which only costs the live table."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(f"\0{_PREFIX}{os.getpid()}-{number}")
        listener.listen(4)
        listener.setblocking(False)
    except OSError:
        listener.close()
        return None
    return listener


def answer(listener: socket.socket, stats: dict[str, Any]) -> None:
    """Show the numbers to whoever knocks, if it is the same user."""
    try:
        visitor, _ = listener.accept()
    except OSError:
        return
    with visitor:
        try:
            _, uid, _ = struct.unpack("3i", visitor.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid in (os.getuid(), 0):
                visitor.settimeout(0.2)  # an answer fits the socket's buffer; who does not read it is not waited for
                visitor.sendall(json.dumps(stats).encode())
        except OSError:
            pass


def pools() -> list[tuple[int, str]]:
    """(process, name) of every pool on this machine that has a window."""
    try:
        lines = Path("/proc/net/unix").read_text().splitlines()
    except OSError:
        return []
    names = {line.rsplit("@", 1)[1] for line in lines if f"@{_PREFIX}" in line}
    return sorted((int(name.removeprefix(_PREFIX).split("-")[0]), name) for name in names)


def look(name: str) -> dict[str, Any] | None:
    """The numbers of a pool; None where it is gone, or somebody else's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as visitor:
        visitor.settimeout(_TIMEOUT_S)
        try:
            visitor.connect(f"\0{name}")
            data = b"".join(iter(lambda: visitor.recv(65536), b""))
            return dict(json.loads(data)) if data else None
        except (OSError, ValueError):
            return None
