"""The last calls of this process in shared memory: readable from outside at any moment, also after a SIGKILL.

Layout: a header, one counter per operation, then fixed slots. Space is allocated before it is mapped, so a full disk cannot raise SIGBUS.
"""

import itertools
import mmap
import os
import struct
import time
from typing import Any

from . import journal, sites

CAPACITY = 2048
HEADER = struct.Struct("<4sIIIQQ")  # magic, slot size, capacity, number of operations, head, pid
SLOT = struct.Struct(
    "<QQQIHHiIIB3x5i4x"
)  # n, started, ended, site, op, dtype, peer, group, reduce op, failed, up to 4 sizes and their count
MAGIC = b"RWR1"
_ENDED = struct.Struct("<Q")
_HEAD_AT = 16

OPS = (
    "all_reduce broadcast reduce all_gather all_gather_into_tensor gather scatter reduce_scatter reduce_scatter_tensor all_to_all "
    "all_to_all_single barrier monitored_barrier send recv isend irecv batch_isend_irecv all_gather_object gather_object "
    "broadcast_object_list scatter_object_list send_object_list recv_object_list all_reduce_coalesced all_gather_coalesced "
    "init_process_group new_group split_group destroy_process_group forward backward next_batch end_of_data ddp"
).split()
NUMBER = {name: i for i, name in enumerate(OPS)}


class Ring:
    """Written by the process that owns it, under the GIL; one `enter` and one `leave` per call."""

    def __init__(self, path: str) -> None:
        size = HEADER.size + 8 * len(OPS) + CAPACITY * SLOT.size
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        HEADER.pack_into(self._map, 0, MAGIC, SLOT.size, CAPACITY, len(OPS), 0, os.getpid())
        self._first = HEADER.size + 8 * len(OPS)
        self._next = itertools.count().__next__
        self._counts = [0] * len(OPS)
        self._names: dict[str, int] = {}
        journal.write("ring", ops=OPS)

    def enter(self, op: int, frame: Any, tensor: Any = None, group: str = "0", peer: int = -1, reduce_op: str = "") -> int:
        """Note that a call begins; the number returned is for `leave`."""
        n = self._next()
        offset = self._first + (n % CAPACITY) * SLOT.size
        dtype, count, a, b, c, d = 0, 0, 0, 0, 0, 0
        if tensor is not None:
            shape = tensor.shape
            count = len(shape)
            a, b, c, d = (*shape[:4], 0, 0, 0, 0)[:4]
            dtype = self._name(str(tensor.dtype))
        SLOT.pack_into(
            self._map, offset, n + 1, time.time_ns(), 0, sites.number_of_caller(frame), op, dtype, peer,
            self._name(group), self._name(reduce_op) if reduce_op else 0, 0, count, _fit(a), _fit(b), _fit(c), _fit(d),
        )  # fmt: skip
        self._counts[op] += 1
        _ENDED.pack_into(self._map, HEADER.size + 8 * op, self._counts[op])
        _ENDED.pack_into(self._map, _HEAD_AT, n + 1)
        return n

    def leave(self, n: int, failed: bool = False) -> None:
        offset = self._first + (n % CAPACITY) * SLOT.size
        if _ENDED.unpack_from(self._map, offset)[0] != n + 1:
            return  # a call so long that its slot was used again
        _ENDED.pack_into(self._map, offset + 16, time.time_ns())
        if failed:
            self._map[offset + 44] = 1

    def mark(self, op: int) -> None:
        """Progress that is only counted: no slot, no stack."""
        self._counts[op] += 1
        _ENDED.pack_into(self._map, HEADER.size + 8 * op, self._counts[op])

    def _name(self, text: str) -> int:
        number = self._names.get(text)
        if number is None:
            number = self._names[text] = len(self._names) + 1
            journal.write("name", i=number, s=text)
        return number


def _fit(value: Any) -> int:
    return min(int(value), 2**31 - 1)


_ring: Ring | None = None
_pid = 0


def here() -> Ring | None:
    """This process's ring if it already has one; never a parent's."""
    return _ring if _pid == os.getpid() else None


def ring(live: str) -> Ring | None:
    """This process's ring, made on first use; None where it cannot be had."""
    global _ring, _pid
    if _pid != os.getpid():
        if _pid:  # forked: the child's journal does not know the parent's numbers
            sites.forget()
        _pid = os.getpid()
        _ring = None
        try:
            _ring = Ring(f"{live}/r-{_pid}")
        except OSError as error:
            journal.write("broken", what="ring", error=str(error))
    return _ring
