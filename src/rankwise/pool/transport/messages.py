"""How parent and worker talk: small packets over a socket, and one page of shared memory that both see without a packet."""

from __future__ import annotations

import array
import ctypes
import marshal
import os
import signal
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from rankwise.pool.memory.shared_memory import Segment

MAX_BYTES = 120_000  # the smallest default socket buffer is 208 KiB, and the kernel counts its own overhead against it
KEPT, UNBATCHABLE, HALVED = 1, 2, 4  # what an order's answer says besides its results
STACK_SIGNAL = signal.SIGRTMAX - 3  # asks a worker to write its stack to its crash notes
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
    """False where the packet does not fit right now. Raises OSError where the other end is closed."""
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


SLOTS = 4096
POSTED, ANSWERED, POSTED_FROM, RUNS_ON, _AWAITS_CARD, _ITEM = 4, 5, 6, 7, 8, 9  # words of eight bytes
_CUTS, _NUM_CUTS = 256, 256  # words; more than the orders that are with a worker at once
_FLAGS = 4096
SIZE = _FLAGS + SLOTS
_RUNNING, _RECALLED = struct.Struct("<QQ"), struct.Struct("<Q")
_RECALLED_AT, _OWN_DOING = 16, 3

current_cpu = ctypes.PyDLL(None).sched_getcpu  # keeps the GIL: giving it away would take longer than the call


class StatusPage:
    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._map = segment.map
        self.words = memoryview(segment.map)[:_FLAGS].cast("Q")

    def run_here(self, serial: int, now_ns: int) -> None:
        """As `run`, for a parent that may be watching."""
        self.words[RUNS_ON] = current_cpu()
        _RUNNING.pack_into(self._map, 0, serial, now_ns)

    def run(self, serial: int, now_ns: int) -> None:
        """Worker: this is what I do now; serial 0 is nothing."""
        _RUNNING.pack_into(self._map, 0, serial, now_ns)

    @property
    def running(self) -> tuple[int, int]:
        """The serial and the time (monotonic, ns) of what the worker does.

        It writes one after the other. Who looks in between sees a serial without a time, and takes it for a task that ran since the
        machine was started: so that is nothing yet.
        """
        serial, since = _RUNNING.unpack_from(self._map, 0)
        return (serial, since) if since else (0, 0)

    def chunk(self, serial: int) -> Callable[[int], bool]:
        """Worker: I run this chunk. What comes back is called with the place of each request before it begins, and says False where it
        and those behind it have been taken back."""
        words, now_ns, cut_at = self.words, time.monotonic_ns, _CUTS + serial % _NUM_CUTS

        def begins(place: int) -> bool:
            if words[cut_at] == serial:
                return False
            words[_OWN_DOING] = 0  # that was the one before
            words[_ITEM] = place
            words[1] = now_ns()
            return True

        return begins

    @property
    def item(self) -> int:
        return int(self.words[_ITEM])

    def cut(self, serial: int) -> None:
        """Parent: of this chunk, no request shall begin any more."""
        self.words[_CUTS + serial % _NUM_CUTS] = serial

    def wait_for_card(self) -> None:
        """Worker: the model has returned, and what it has asked of the card may not be done."""
        self.words[_AWAITS_CARD] = self.words[1]

    @property
    def awaits_card(self) -> bool:
        return bool(self.words[1] and self.words[_AWAITS_CARD] == self.words[1])

    def post(self, serial: int, cpu: int) -> None:
        """Parent, from this core: there is a packet for a worker that may be watching."""
        self.words[POSTED_FROM] = cpu
        self.words[POSTED] = serial

    def nudge(self) -> None:
        """Parent: there is a packet of another kind."""
        self.words[POSTED] = 0

    def answer(self, serial: int) -> None:
        """Worker: there is an answer for a parent that may be watching."""
        self.words[ANSWERED] = serial

    def recall(self, serial: int) -> None:
        """Parent: whatever was sent up to this serial and has not begun shall not begin."""
        _RECALLED.pack_into(self._map, _RECALLED_AT, serial)

    @property
    def recalled(self) -> int:
        return int(_RECALLED.unpack_from(self._map, _RECALLED_AT)[0])

    def note_own_doing(self) -> None:
        """Worker: the code of what I do now is about to end or stop me, or may be."""
        self.words[_OWN_DOING] = self.words[0]

    @property
    def is_own_doing(self) -> bool:
        """Whether that was said of what the worker does, or was doing when it ended."""
        serial, _ = self.running
        return bool(serial and self.words[_OWN_DOING] == serial)

    def is_taken(self, slot: int) -> bool:
        return self._map[_FLAGS + slot] != 0

    def free(self, slot: int) -> None:
        self._map[_FLAGS + slot] = False

    def mark(self, slot: int, taken: bool) -> None:
        """The worker takes an output slot, the parent gives it back: never both at once, so a byte is enough."""
        self._map[_FLAGS + slot] = taken
