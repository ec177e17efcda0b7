"""The last calls of this process in shared memory: readable from outside at any moment, also after a SIGKILL.

Layout: a header, one counter per operation, then fixed slots, then what the last all_to_all calls send to whom. Space is allocated before
it is mapped, so a full disk cannot raise SIGBUS.
"""

import _thread
import itertools
import mmap
import os
import struct
import threading
import time
from typing import Any

from . import journal, sites

CAPACITY = 2048
HEADER = struct.Struct("<4sIIIQQ")  # magic, slot size, capacity, number of operations, head, pid
SLOT = struct.Struct("<QQQIHHiIIBB2x20s4x")  # n, started, ended, site, op, dtype, peer, group, reduce op, failed, helper thread, shape
SHAPE = struct.Struct("<5i")  # number of dimensions, the first 4 sizes
MAGIC = b"RWR1"
NUM_SPLITS, MOST_PEERS = 64, 64
SPLITS = struct.Struct(f"<QQ{2 * MOST_PEERS}I")  # n, number of ranks, numbers sent to each, numbers expected from each
# Header, counters and slots are whole words: one word is written faster, and at once, through a view of words.
_HEAD_WORD, _FIRST_COUNT_WORD = 2, HEADER.size // 8
_SLOT_WORDS, _STARTED_WORD, _ENDED_WORD, _FAILED_BYTE = SLOT.size // 8, 1, 2, 44
_MAX_SHAPES = 4096

OPS = (
    "all_reduce broadcast reduce all_gather all_gather_into_tensor gather scatter reduce_scatter reduce_scatter_tensor all_to_all "
    "all_to_all_single barrier monitored_barrier send recv isend irecv batch_isend_irecv all_gather_object gather_object "
    "broadcast_object_list scatter_object_list send_object_list recv_object_list all_reduce_coalesced all_gather_coalesced "
    "init_process_group new_group split_group destroy_process_group forward backward next_batch end_of_data ddp "
    "reduce_scatter_coalesced pass_start pass_end fsdp_forward"
).split()
NUMBER = {name: i for i, name in enumerate(OPS)}


class Ring:
    """Written by the process that owns it, under the GIL; one `enter` and one `leave` per call."""

    def __init__(self, path: str) -> None:
        first = HEADER.size + 8 * len(OPS)
        size = first + CAPACITY * SLOT.size + NUM_SPLITS * SPLITS.size
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        HEADER.pack_into(self._map, 0, MAGIC, SLOT.size, CAPACITY, len(OPS), 0, os.getpid())
        self._words = memoryview(self._map).cast("Q")
        self._first_word = first // 8
        self._main = threading.main_thread().ident
        self._next = itertools.count().__next__
        self._next_name = itertools.count(1).__next__
        self._next_split = itertools.count().__next__
        self._names: dict[Any, int] = {}
        self._shapes: dict[Any, bytes] = {}
        journal.write("ring", ops=OPS)

    def enter(self, op: int, frame: Any, tensor: Any = None, group: str = "0", peer: int = -1, reduce_op: Any = None) -> int:
        """Note that a call begins; the number returned is for `leave`."""
        names = self._names
        dtype, shape = 0, b""
        if tensor is not None:
            dtype = names.get(tensor.dtype) or self._name(tensor.dtype)
            shape = self._shapes.get(tensor.shape) or self._shape(tensor.shape)
        n = self._next()
        SLOT.pack_into(
            self._map, 8 * (self._first_word + n % CAPACITY * _SLOT_WORDS),
            n + 1, time.time_ns(), 0, sites.number_of_caller(frame), op, dtype, peer, names.get(group) or self._name(group),
            0 if reduce_op is None else names.get(reduce_op) or self._name(reduce_op), 0, _thread.get_ident() != self._main, shape,
        )  # fmt: skip
        self._words[_FIRST_COUNT_WORD + op] += 1
        self._words[_HEAD_WORD] = n + 1
        return n

    def leave(self, n: int, failed: bool = False) -> int:
        """Note that the call has ended; returns the nanoseconds it took, 0 where its slot was used again meanwhile."""
        words, word = self._words, self._first_word + n % CAPACITY * _SLOT_WORDS
        if words[word] != n + 1:
            return 0
        words[word + _ENDED_WORD] = now = time.time_ns()
        if failed:
            self._map[8 * word + _FAILED_BYTE] = 1
        return max(0, now - words[word + _STARTED_WORD])  # time_ns() goes back where the clock is set back

    def note_splits(self, n: int, sent: list[int], expected: list[int]) -> None:
        """Note how much the all_to_all entered as `n` sends to each rank and expects from each; not for groups over 64 ranks."""
        num, room = len(sent), MOST_PEERS - len(sent)
        if room < 0 or len(expected) != num:
            return
        numbers = (min(number, 2**32 - 1) for row in (sent, expected) for number in (*row, *[0] * room))
        at = 8 * (self._first_word + CAPACITY * _SLOT_WORDS) + self._next_split() % NUM_SPLITS * SPLITS.size
        SPLITS.pack_into(self._map, at, n + 1, num, *numbers)

    def mark(self, op: int) -> None:
        """Count one operation, without a slot and without a stack."""
        self._words[_FIRST_COUNT_WORD + op] += 1

    def count_of(self, op: int) -> int:
        return self._words[_FIRST_COUNT_WORD + op]

    def _name(self, thing: Any) -> int:
        """The number of a dtype, a group's name or a reduce op; each text is written to the journal once."""
        text = str(thing)
        number = self._names.get(text)
        if number is None:
            number = self._names[text] = self._next_name()
            journal.write("name", i=number, s=text)
        self._names[thing] = number
        return number

    def _shape(self, shape: Any) -> bytes:
        if len(self._shapes) == _MAX_SHAPES:
            self._shapes.clear()
        sizes = (*(min(int(size), 2**31 - 1) for size in shape[:4]), 0, 0, 0, 0)[:4]
        packed = self._shapes[tuple(shape)] = SHAPE.pack(len(shape), *sizes)
        return packed


current: Ring | None = None  # this process's own ring, never a parent's; None until it is needed
_pid = 0  # this process's pid once it has made its ring, or failed to


def open_ring(live: str) -> Ring | None:
    """This process's ring, made on first use; None where it cannot be made."""
    global current, _pid
    if not _pid:
        _pid = os.getpid()
        try:
            current = Ring(f"{live}/r-{_pid}")
        except OSError as error:
            journal.write("broken", what="ring", error=str(error))
    return current


def _after_fork() -> None:
    global current, _pid
    current, _pid = None, 0


os.register_at_fork(after_in_child=_after_fork)  # cheaper than checking the pid at every call
