"""Small control messages beside the lanes: one packet each, between parent and worker."""

from __future__ import annotations

import array
import marshal
import os
import socket
import struct
from typing import Any

MAX_BYTES = 120_000  # the smallest default socket buffer is 208 KiB, and the kernel counts its own overhead against it
INLINE_BYTES = 8192  # up to here, an array travels in the message: cheaper than the page faults of a lane
KEPT, UNBATCHABLE, HALVED = 1, 2, 4  # what an order's answer says besides its results
_FD = array.array("i").itemsize
# Plain numbers: joining the flags anew for each packet would take longer than sending it.
SEND, SEND_NOW = int(socket.MSG_NOSIGNAL), int(socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
_RECEIVE, _RECEIVE_NOW = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT)
_ANCILLARY = socket.CMSG_SPACE(4 * _FD)


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def wait_at_most(sock: socket.socket, seconds: float) -> None:
    """For a packet, before BlockingIOError says that there is none; 0: for ever."""
    whole, part = divmod(int(seconds * 1e6), 1_000_000)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", whole, part))


def send(sock: socket.socket, message: Any, fds: tuple[int, ...] = (), wait: bool = False) -> bool:
    """False where the packet does not fit right now. Raises OSError where nobody is left to read it."""
    data = marshal.dumps(message, 2)
    flags = SEND if wait else SEND_NOW
    try:
        if fds:
            socket.send_fds(sock, [data], list(fds), flags)
        else:
            sock.send(data, flags)
    except BlockingIOError:
        return False
    return True


class Receiver:
    """Reads packets; descriptors that came along wait in `fds`, in order."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray(4 << 20)
        self._view = memoryview(self._buffer)
        self.fds: list[int] = []

    def receive(self, wait: bool) -> Any | None:
        """The next message; None where the other end is gone. Raises BlockingIOError where there is none yet."""
        flags = _RECEIVE if wait else _RECEIVE_NOW
        try:
            size, ancillary, _, _ = self._sock.recvmsg_into((self._buffer,), _ANCILLARY, flags)
        except ConnectionResetError:  # the other end left without reading everything; what it had said itself is still there
            size, ancillary, _, _ = self._sock.recvmsg_into((self._buffer,), _ANCILLARY, flags)
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self.fds += array.array("i", data[: len(data) - len(data) % _FD])
        return marshal.loads(self._view[:size]) if size else None

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = []
