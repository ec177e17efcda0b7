"""Ports: connecting to a port of another host, and finding the process that listens on a port of this host."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import time
from dataclasses import dataclass

import psutil

_SEGMENT = 536  # bytes that every path carries: our messages must pass where large packets are lost
_FIRST_TRY_S = 1.0
_SYNS = 4


@dataclass(frozen=True)
class ListeningProcess:
    """A process that listens on a port; `pid` is None where it belongs to another user and we may not see it."""

    pid: int | None
    program: str = ""
    user: str = ""
    command: str = ""

    def __str__(self) -> str:
        """`python (pid 4242, user ann: python train.py)`."""
        if not self.pid:
            return "a process of another user"
        user = f", user {self.user}" if self.user else ""
        return f"{self.program or 'a process'} (pid {self.pid}{user}{': ' + self.command if self.command else ''})"


def find_listeners(port: int) -> list[ListeningProcess]:
    """The processes that listen on a TCP port of this host; empty where that cannot be seen."""
    pids: dict[int | None, None] = {}
    with contextlib.suppress(psutil.Error, OSError):
        for link in psutil.net_connections("tcp"):
            if link.status == psutil.CONN_LISTEN and link.laddr and link.laddr.port == port:
                pids[link.pid] = None
    return [_listener(pid) for pid in pids]


def _listener(pid: int | None) -> ListeningProcess:
    with contextlib.suppress(psutil.Error):
        if pid:
            process = psutil.Process(pid)
            return ListeningProcess(pid, process.name(), process.username(), " ".join(process.cmdline()[:6])[:200])
    return ListeningProcess(pid)


def keep_segments_small(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SEGMENT)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def connect(address: str, port: int, timeout_s: float, *, small: bool = False) -> tuple[socket.socket | None, str]:
    """A connection, or None and how it failed: `connection refused`, `no answer`, `host unreachable`, …

    Where the first packet is not answered within a second, several more connections are tried at once: on a path that loses a third of its
    packets a single one fails now and then, and would look like a firewall.
    """
    found, how = _connect_any(address, port, min(timeout_s, _FIRST_TRY_S), 1, small)
    if found is None and how == "no answer" and timeout_s > _FIRST_TRY_S:
        return _connect_any(address, port, timeout_s - _FIRST_TRY_S, _SYNS, small)
    return found, how


def free_port(address: str = "127.0.0.1") -> int:
    """A port of this host that nothing uses now."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def try_port(address: str, port: int, timeout_s: float) -> str:
    """How a connection goes: `connected`, `connection refused`, `no answer`, …"""
    sock, how = connect(address, port, timeout_s)
    if sock is not None:
        sock.close()
    return how


def _connect_any(address: str, port: int, timeout_s: float, tries: int, small: bool) -> tuple[socket.socket | None, str]:
    waiting: list[socket.socket] = []
    how = "no answer"
    try:
        for _ in range(tries):
            sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
            waiting.append(sock)
            if small:
                keep_segments_small(sock)
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
