"""The connection between the pool and one worker: packets, a page of memory that both share, and the pool's handle of the worker."""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import marshal
import os
import select
import signal
import socket
import struct
import termios
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from rankwise.pool.errors import Death
from rankwise.pool.memory.shared_memory import Segment
from rankwise.pool.schedule.state import Seat, monotonic, monotonic_ns

MAX_BYTES = 120_000  # the smallest default socket buffer is 208 KiB, and the kernel counts its own overhead against it
KEPT, UNBATCHABLE, HALVED = 1, 2, 4  # flags in the answer to an order
STACK_SIGNAL = signal.SIGRTMAX - 3  # asks a worker to write its stack to its crash notes
_FD = array.array("i").itemsize
# Plain numbers: joining the flags anew for each packet would take longer than sending it.
SEND, SEND_NOW = int(socket.MSG_NOSIGNAL), int(socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
_RECEIVE, _RECEIVE_NOW = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT)
_ANCILLARY = socket.CMSG_SPACE(4 * _FD)


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends wait for as long as we say, whatever `socket.setdefaulttimeout` the caller's program has called."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.settimeout(None)
    return ends


def wait_at_most(sock: socket.socket, seconds: float) -> None:
    """Set how long to wait for a packet before BlockingIOError says that there is none; 0 waits for ever."""
    whole, part = divmod(int(seconds * 1e6), 1_000_000)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", whole, part))


def wait_for(fd: int, seconds: float) -> None:
    """Wait until there is something to read, or the time is over."""
    poll = select.poll()  # select takes no descriptor above 1,023
    poll.register(fd, select.POLLIN)
    poll.poll(1000 * seconds)


def send(sock: socket.socket, message: Any, fds: tuple[int, ...] = (), wait: bool = False) -> bool:
    """False if the packet does not fit right now. Raises OSError if the other end is closed."""
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


def check_is_kernels(error: OSError) -> None:
    """Raise an error that has no number: a signal handler raised it (a TimeoutError, say) while the kernel was asked."""
    if error.errno is None:
        raise error


class Receiver:
    """Reads packets. Descriptors that came along wait in `fds`, in order."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray(4 << 20)
        self._view = memoryview(self._buffer)
        self.fds: list[int] = []

    def receive(self, wait: bool) -> Any | None:
        """The next message; None if the other end is gone. Raises BlockingIOError if there is none yet."""
        flags = _RECEIVE if wait else _RECEIVE_NOW
        try:
            try:
                size, ancillary, _, _ = self._sock.recvmsg_into((self._buffer,), _ANCILLARY, flags)
            except ConnectionResetError:  # the other end left without reading everything; what it had sent is still there
                size, ancillary, _, _ = self._sock.recvmsg_into((self._buffer,), _ANCILLARY, flags)
        except BlockingIOError:
            raise
        except OSError as error:
            check_is_kernels(error)
            return None
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self.fds += array.array("i", data[: len(data) - len(data) % _FD])
        return marshal.loads(self._view[:size]) if size else None

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = []


SLOTS = 4096
# Indices of words of eight bytes. They tell which packet was posted to the worker (its serial; 0: a packet of another kind) and from which
# core, which packet the worker has answered, and which core it runs on.
POSTED, ANSWERED, POSTED_FROM, RUNS_ON, _AWAITS_GPU, _ITEM = 4, 5, 6, 7, 8, 9
_CUTS, _NUM_CUTS = 256, 256  # words; more than the orders that a worker has at once
_FLAGS = 4096
SIZE = _FLAGS + SLOTS
_RUNNING = struct.Struct("<QQ")
_RECALLED, _OWN_DOING = 2, 3  # indices of words, too
current_cpu = ctypes.PyDLL(None).sched_getcpu  # keeps the GIL: releasing it would take longer than the call


class StatusPage:
    """The page of memory that both sides see: what the worker runs now, and notes that need no packet."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._map = segment.map
        self.words = memoryview(segment.map)[:_FLAGS].cast("Q")
        self.taken = memoryview(segment.map)[_FLAGS:]  # a byte per output slot: the worker takes a slot, the parent frees it

    def run(self, serial: int, now_ns: int) -> None:
        """For the worker: it runs this serial now; 0 is nothing."""
        _RUNNING.pack_into(self._map, 0, serial, now_ns)

    @property
    def running(self) -> tuple[int, int]:
        """The serial of what the worker runs, and since when (monotonic, ns).

        The worker writes one after the other. A reader in between sees a serial without a time, which would be a task that has run since
        the machine was started: so it counts as nothing.
        """
        serial, since = _RUNNING.unpack_from(self._map, 0)
        return (serial, since) if since else (0, 0)

    def chunk(self, serial: int) -> Callable[[int], bool]:
        """For the worker: it runs this chunk now. Call the function that comes back with the place of each request before that begins; it
        returns False if this request and those after it have been taken back."""
        words, now_ns, cut_at = self.words, monotonic_ns, _CUTS + serial % _NUM_CUTS

        def begins(place: int) -> bool:
            if words[cut_at] == serial:
                return False
            words[_OWN_DOING] = 0  # a note of it was about the request before
            words[_ITEM] = place
            words[1] = now_ns()
            return True

        return begins

    @property
    def item(self) -> int:
        return int(self.words[_ITEM])

    def cut(self, serial: int) -> None:
        """For the parent: no further request of this chunk may begin."""
        self.words[_CUTS + serial % _NUM_CUTS] = serial

    def wait_for_gpu(self) -> None:
        """For the worker: the model has returned, and the GPU may still be at work for it."""
        self.words[_AWAITS_GPU] = self.words[1]

    @property
    def awaits_gpu(self) -> bool:
        return bool(self.words[1] and self.words[_AWAITS_GPU] == self.words[1])

    @property
    def recalled(self) -> int:
        """Orders up to this serial that have not begun must not begin any more. The parent sets it."""
        return int(self.words[_RECALLED])

    @recalled.setter
    def recalled(self, serial: int) -> None:
        self.words[_RECALLED] = serial

    def note_own_signal(self) -> None:
        """For the worker: code that it runs is about to send this process a signal, which may end or stop it."""
        self.words[_OWN_DOING] = self.words[0]

    @property
    def is_own_doing(self) -> bool:
        """Whether the worker noted an own signal during what it runs now, or ran when it ended."""
        serial, _ = self.running
        return bool(serial and self.words[_OWN_DOING] == serial)

    def free(self, slot: int) -> None:
        self.taken[slot] = False


# Watching for the other side for a moment before going to sleep exists only for speed. A process that was just woken runs Python two to
# three times slower than one that is warm, so for tasks of less than 0.1 ms that follow each other closely, falling asleep and waking up is
# most of a round trip. Both sides yield the core to any other process meanwhile. Some kernels put two processes that talk to each other on
# one core and leave them there, where one can only watch while the other waits; so the worker moves to another core once.
BRISK_NS = 100_000  # a task that takes less is quick
_WATCH_ANSWER_NS, _BEGIN_NS = 500_000, 40_000  # how long a caller watches; less if the worker does not even begin
_WATCH_POST_NS = 1_000_000  # how long a worker watches
_CLOSE_NS, _STREAK = 3_000_000, 3  # quick tasks with less time between them follow each other closely; after so many a worker moves


def watch_for_answer(page: StatusPage, serial: int, now_ns: int) -> None:
    """Watch in the caller's thread; only shortly if the worker does not begin, or runs on this core, which it gets when we sleep."""
    words, soon_ns, until_ns = page.words, now_ns + _BEGIN_NS, now_ns + _WATCH_ANSWER_NS
    while words[ANSWERED] != serial:
        now_ns = monotonic_ns()
        if now_ns > until_ns or (now_ns > soon_ns and (words[0] != serial or words[RUNS_ON] == current_cpu())):
            return
        os.sched_yield()


class PostWatch:
    """Watches for the next packet in the worker, after a quick task."""

    def __init__(self, page: StatusPage) -> None:
        self._page = page
        self._streak = self._watched_ns = 0

    def watch(self, last: int) -> None:
        """Watch until a packet is posted after the one with the serial `last`; only if quick tasks follow each other closely."""
        words, now_ns = self._page.words, monotonic_ns()
        self._streak = self._streak + 1 if now_ns - self._watched_ns < _CLOSE_NS else 0
        if self._streak:
            is_alone = words[POSTED_FROM] != current_cpu()
            if not is_alone and self._streak >= _STREAK:
                self._streak, is_alone = 1, _move()
            until_ns = now_ns + _WATCH_POST_NS
            while is_alone and words[POSTED] == last and monotonic_ns() < until_ns:
                os.sched_yield()
        self._watched_ns = monotonic_ns()


def _move() -> bool:
    """Move this process to another core; its set of allowed cores stays as it was."""
    allowed = os.sched_getaffinity(0)
    others = allowed - {current_cpu()}
    if others:
        os.sched_setaffinity(0, others)
        os.sched_setaffinity(0, allowed)
    return bool(others)


class WorkerHandle:
    """The pool's end of one worker: its socket, its status page, its process, and the notes it leaves if it crashes."""

    def __init__(self, number: int, seat: Seat) -> None:
        self.number, self.seat = number, seat
        self.sock, self._theirs = pair()
        self.send = self.sock.send  # looked up once, for speed
        self.receiver = Receiver(self.sock)
        with ExitStack() as undo:  # or each attempt that fails, for lack of descriptors, would leave some open
            undo.callback(self.sock.close)
            undo.callback(self._theirs.close)
            self.page = StatusPage(Segment.create(SIZE, "rankwise-status"))
            undo.callback(self.page.segment.close)
            self.crash = os.memfd_create("rankwise-crash", os.MFD_CLOEXEC)
            undo.callback(os.close, self.crash)
            self._life_line, self._life = os.pipe2(os.O_CLOEXEC)  # when our end is closed, however that happens, the kernel ends the worker
            undo.pop_all()
        self.pid: int | None = None  # None until it runs: a signal to 0 would reach our whole process group
        self.pidfd = -1
        self.known_segments = 0  # how many of the arena's segments the worker has been given
        self.segments: list[Segment | OSError] = []  # of its outputs; an error stands for a segment that cannot be mapped here
        self.lacks_segment = False
        self.is_closed = False
        self.is_gone = False  # its process has ended, or is about to
        self.is_orphan = False  # the process it was forked from is gone, so its exit code will not be reported
        self.is_lost = False  # its socket is closed
        self.has_answered = False
        self.is_armed = False  # the listener's thread waits for its packets
        self.reading = threading.Lock()  # held by the thread that reads this worker's packets
        self.reader: Any = None
        self.verdict: Death | None = None  # why we ended it ourselves

    @property
    def fds(self) -> tuple[int, ...]:
        return (self._theirs.fileno(), self.page.segment.fd, self.crash, self._life_line)

    def given_away(self) -> None:
        self._theirs.close()
        os.close(self._life_line)
        self._life_line = -1

    def born(self, pid: int) -> None:
        if self.pid:
            return
        self.pid = pid
        try:
            self.pidfd = os.pidfd_open(pid)
        except OSError:  # it is dead already; its end will be reported
            self.pidfd = -1

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> bool:
        """Send a signal to this very process, never to a later one that has the same pid. False if it is gone."""
        if self.pidfd < 0:
            return False
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except OSError:
            return False
        return True

    def kill_and_wait(self, seconds: float) -> None:
        if self.signal(signal.SIGKILL):
            wait_for(self.pidfd, seconds)

    def is_anything_under_way(self) -> bool:
        """Whether there are packets that the worker has not read, or that have not been read here."""
        try:
            if any(fcntl.ioctl(self.sock, termios.TIOCOUTQ, bytes(4))):
                return True
            self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except (OSError, ValueError):  # it is closed
            pass
        return True

    def add_segment(self, size: int) -> None:
        """Map one more segment of the worker. A segment that cannot be mapped keeps its number, so that later ones have the right one."""
        try:
            if not self.receiver.fds:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))  # the kernel drops a descriptor that finds no free number here
            self.segments.append(Segment.adopted(self.receiver.fds.pop(0), size))
        except OSError as error:
            self.segments.append(OSError(error.errno, f"a result cannot be read in this process: {error.strerror}"))
            self.lacks_segment = True

    def death(self, exit_code: int | None, out_of_memory: bool = False, is_guess: bool = False) -> Death:
        if self.verdict is not None:
            return replace(self.verdict, exit_code=exit_code)
        return Death(exit_code, out_of_memory, is_guess, own_doing=self.page.is_own_doing, stack=self.crash_notes())

    def crash_notes(self) -> str:
        try:
            return os.pread(self.crash, 20_000, 0).decode(errors="replace")
        except OSError:
            return ""

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self.reader = None  # it refers to our memory; a mapping keeps its file open until no object refers to it
        self.sock.close()
        self._theirs.close()
        self.receiver.close()
        self.page.segment.close()
        for segment in self.segments:
            if isinstance(segment, Segment):
                segment.close()
        fds = self.crash, self._life, self._life_line, self.pidfd
        self.crash = self.pidfd = -1  # a thread that looks at its stack may still use them
        for fd in fds:
            if fd >= 0:
                os.close(fd)


_OURS = ("rankwise/pool/workers/", "runpy")
_ANSWER_S, _SETTLE_S = 2.0, 0.05


def stack_of(handle: WorkerHandle) -> str:
    """The worker's Python stack, innermost call first and without our own frames; or why it cannot be read. On this signal, C code in the
    worker writes the stack to the crash notes, line by line, whatever Python does."""
    before = len(handle.crash_notes())
    if not handle.signal(STACK_SIGNAL):
        return "(its stack could not be read: the worker is gone)"
    end, notes, last = monotonic() + _ANSWER_S, "", ""
    while monotonic() < end and not (notes and notes == last):
        time.sleep(_SETTLE_S)
        last, notes = notes, handle.crash_notes()[before:]
    frames = [line.strip() for line in notes.splitlines() if line.startswith("  File ")]
    if not frames:
        return "(its stack could not be read: the worker did not answer a signal)"
    lines = [line for line in frames if not any(ours in line for ours in _OURS)] or frames
    if handle.page.awaits_gpu:
        lines.insert(0, "(the model had returned, and the GPU was not done with what it had been given)")
    return "\n".join(lines)
