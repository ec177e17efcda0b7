"""Shared memory: segments without a name, which of their pages are free, and the arena that holds the inputs of all tasks."""

from __future__ import annotations

import math
import mmap
import os
import threading
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from rankwise.pool.errors import pool_closed
from rankwise.pool.memory.encoding import NUMPY, given

POPULATE_WRITE = 23  # madvise: touch the memory now rather than in the first request
# Larger copies bypass the processor's cache; in pieces that fit into it, a copy takes half the time.
_PIECE = 4 << 20


class Segment:
    """One memfd, mapped: `private` mappings see what others write, and keep their own writes to themselves."""

    def __init__(self, fd: int, size: int, private: bool = False) -> None:
        self.fd, self.size = fd, size
        self.map = mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE if private else mmap.MAP_SHARED)
        self.view: np.ndarray[Any, Any] = np.frombuffer(self.map, np.uint8)
        self.address = int(self.view.ctypes.data)

    @classmethod
    def create(cls, size: int, name: str) -> Segment:
        return cls.adopted(os.memfd_create(name, os.MFD_CLOEXEC), size)

    @classmethod
    def adopted(cls, fd: int, size: int) -> Segment:
        """A segment made of a descriptor, which belongs to the segment from now on."""
        try:
            os.ftruncate(fd, size)
            return cls(fd, size)
        except OSError as error:  # RLIMIT_FSIZE, RLIMIT_AS
            os.close(fd)
            raise OSError(error.errno, f"{size} bytes of shared memory cannot be had: {error.strerror}") from None

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def copy_into(target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
    """Copy an array of the same shape and type; numpy releases the GIL meanwhile."""
    if source.nbytes <= _PIECE or not source.flags.c_contiguous:
        np.copyto(target, source)
        return
    to, come = target.reshape(-1), source.reshape(-1)
    step = _PIECE // source.itemsize
    for start in range(0, len(come), step):
        np.copyto(to[start : start + step], come[start : start + step])


PAGE = 4096


def rounded(nbytes: int) -> int:
    """The number of bytes, rounded up to whole pages; at least one page."""
    return max(PAGE, -(-nbytes // PAGE) * PAGE)


class FreeRanges:
    """Free ranges of [0, size), sorted, never touching each other. Sizes and offsets are multiples of the page."""

    def __init__(self, size: int) -> None:
        self.size = self.free_bytes = size
        self._ranges = [(0, size)]  # start and end

    def take(self, nbytes: int) -> int | None:
        """The offset of `nbytes` (whole pages) that were free, or None."""
        for i, (start, end) in enumerate(self._ranges):
            if end - start >= nbytes:
                self._ranges[i : i + 1] = [(start + nbytes, end)] if end - start > nbytes else []
                self.free_bytes -= nbytes
                return start
        return None

    def give(self, start: int, nbytes: int) -> None:
        """Free what `take` gave; joins it with its neighbours."""
        end, i = start + nbytes, bisect_left(self._ranges, (start, 0))
        if (i and self._ranges[i - 1][1] > start) or (i < len(self._ranges) and self._ranges[i][0] < end):
            raise ValueError(f"{nbytes} bytes at {start} are free already")
        self.free_bytes += nbytes
        self._ranges.insert(i, (start, end))
        for k in (i + 1, i):
            if 0 < k < len(self._ranges) and self._ranges[k - 1][1] == self._ranges[k][0]:
                self._ranges[k - 1 : k + 1] = [(self._ranges[k - 1][0], self._ranges[k][1])]

    @property
    def is_empty(self) -> bool:
        return self.free_bytes == self.size


FIRST_BYTES = 8 << 20
GROWTH_BYTES = 64 << 20


class Lane:
    """Segments that grow with demand. A place is the number of a segment and an offset in it. Not safe for threads."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.segments: list[Segment] = []  # a segment that was given up keeps its number, and has no memory
        self._free_ranges: list[FreeRanges] = []

    @property
    def total_bytes(self) -> int:
        return sum([extents.size for extents in self._free_ranges])

    @property
    def used_bytes(self) -> int:
        return sum([extents.size - extents.free_bytes for extents in self._free_ranges])

    def take(self, room: int) -> tuple[int, int] | None:
        for number, extents in enumerate(self._free_ranges):
            offset = extents.take(room) if extents.free_bytes >= room else None
            if offset is not None:
                return number, offset
        return None

    def give(self, number: int, offset: int, room: int) -> None:
        self._free_ranges[number].give(offset, room)

    def grow(self, room: int, limit_bytes: int) -> tuple[int, int] | None:
        """A new segment and a place in it, or None if that would pass the limit. The segment is a little larger than asked for, so that
        requests that grow bit by bit do not each make a new one."""
        ample = rounded(max(room + room // 4, GROWTH_BYTES if self.segments else FIRST_BYTES))
        if limit_bytes - self.total_bytes < room:
            self._retire()
        left = (limit_bytes - self.total_bytes) // PAGE * PAGE
        return self.add(min(ample, left), room) if left >= room else None

    def add(self, size: int, room: int) -> tuple[int, int]:
        self.segments.append(Segment.create(size, self._name))
        self._free_ranges.append(FreeRanges(size))
        offset = self._free_ranges[-1].take(room)
        assert offset is not None
        return len(self.segments) - 1, offset

    def _retire(self) -> None:
        """Give the memory of unused segments back to the machine; they are too small for what is asked now."""
        for number, extents in enumerate(self._free_ranges):
            if extents.size and extents.is_empty:
                with suppress(OSError):  # a kernel that does not know this keeps the memory
                    self.segments[number].map.madvise(mmap.MADV_REMOVE)  # also where another process has it mapped
                self._free_ranges[number] = FreeRanges(0)


class Slot:
    """Some pages of a segment; `refs` counts the tasks and arrays that still need them."""

    __slots__ = ("offset", "refs", "room", "segment")

    def __init__(self, segment: int, offset: int, room: int) -> None:
        self.segment, self.offset, self.room, self.refs = segment, offset, room, 1


class Arena:
    """The shared memory for all inputs, with a count of who still uses each slot. Any thread may call it; a finalizer may call `drop`."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._lane = Lane("rankwise-inputs")
        self.segments = self._lane.segments
        self.lock = threading.Lock()
        self._dropped: deque[Slot] = deque()  # a finalizer may run anywhere, also while this thread holds the lock
        self.is_closed = False
        self.closed = pool_closed  # makes the error that is raised then
        self.lent: dict[int, Slot] = {}  # by address: the slots of arrays from `pool.empty`

    def take(self, nbytes: int) -> Slot | None:
        """Room for `nbytes`, or None if that would pass the limit. Raises PoolClosed."""
        room = rounded(nbytes)
        if self.is_closed:  # also in a forked child, which does not know what is free in the parent
            raise self.closed()
        with self.lock:
            self._collect()
            is_first = not self.segments
            place = self._lane.take(room) or self._lane.grow(room, self.limit_bytes)
            if is_first and place is not None:
                with suppress(OSError):  # a kernel before 5.14 does not know it, which only costs time
                    self.segments[0].map.madvise(POPULATE_WRITE, 0, min(FIRST_BYTES // 4, self.segments[0].size))
            return Slot(*place, room) if place is not None else None

    def hold(self, slot: Slot) -> None:
        with self.lock:
            slot.refs += 1

    def drop(self, slot: Slot) -> None:
        """Count one user less. The slot is freed at the next `take`."""
        self._dropped.append(slot)

    def write(self, array: np.ndarray[Any, Any]) -> Slot | None:
        slot = self.take(array.nbytes)
        if slot is not None:
            copy_into(np.ndarray(array.shape, array.dtype, self.segments[slot.segment].map, slot.offset), array)
        return slot

    def lend(self, shape: tuple[int, ...], dtype: str, as_tensor: bool) -> Any | None:
        """An array in lane memory; a `submit` of it copies nothing."""
        slot = self.take(math.prod(shape) * NUMPY[dtype].itemsize)
        if slot is None:
            return None
        self.lent[self.address(slot)] = slot
        array = leased(self.segments[slot.segment], slot.offset, dtype, shape, self.drop, slot)
        return given(array, dtype, as_tensor)

    def lent_slot(self, array: np.ndarray[Any, Any]) -> Slot | None:
        """The slot that this array fills from its beginning, held once more; None if its memory is not from `pool.empty`."""
        if not self.lent or not array.flags.c_contiguous:
            return None
        slot = self.lent.get(array.ctypes.data)
        if slot is None or array.nbytes > slot.room:
            return None
        self.hold(slot)
        return slot

    def address(self, slot: Slot) -> int:
        return self.segments[slot.segment].address + slot.offset

    def used_bytes(self) -> int:
        with self.lock:
            self._collect()
            return self._lane.used_bytes

    @property
    def total_bytes(self) -> int:
        return self._lane.total_bytes

    def close(self) -> None:
        """Called when all workers have ended. Arrays that the user still has keep their memory."""
        with self.lock:
            self.is_closed = True
            for segment in self.segments:
                segment.close()
            self._lane = Lane("")
            self.segments, self.lent = self._lane.segments, {}

    def _collect(self) -> None:
        forks.let_go()
        while self._dropped and self.segments:
            slot = self._dropped.popleft()
            slot.refs -= 1
            if slot.refs == 0:
                self.lent.pop(self.address(slot), None)
                self._lane.give(slot.segment, slot.offset, slot.room)


# By the id of the weak reference: the reference to the array that all views and tensors of a slot are based on, what to call with the slot
# when that array is collected, the slot, and how many forks came before.
_leases: dict[int, tuple[weakref.ref[Any], Callable[[Any], None], Any, int]] = {}


def leased(
    segment: Segment, offset: int, dtype: str, shape: tuple[int, ...], release: Callable[[Any], None], slot: Any
) -> np.ndarray[Any, Any]:
    """An array on lane memory; `release(slot)` is called when it is collected, in any thread, so it must not wait for a lock."""
    array: np.ndarray[Any, Any] = np.ndarray(shape, NUMPY[dtype], segment.map, offset)
    reference = weakref.ref(array, _end)
    _leases[id(reference)] = reference, release, slot, forks.count
    return array


def _end(reference: weakref.ref[Any]) -> None:
    _, release, slot, born = _leases.pop(id(reference))
    if forks.may_see(born):
        forks.kept.append((release, slot, born))
    else:
        release(slot)


class _Forks:
    """A forked child has copies of the arrays, but the memory is the parent's. Collecting a copy frees nothing; and memory that the child
    may still read is not used again before the child has ended or become another program."""

    def __init__(self) -> None:
        self.count = 0
        self.kept: deque[tuple[Callable[[Any], None], Any, int]] = deque()  # leases that have ended here, but perhaps not in a child
        self._children: dict[int, int] = {}  # by the count: our end of a pipe, whose other end only the child has
        self._theirs = -1
        self._lock = threading.RLock()  # held from before a fork until after it
        os.register_at_fork(before=self._before, after_in_parent=self._after_in_parent, after_in_child=self._after_in_child)

    def may_see(self, born: int) -> bool:
        return any(number > born for number in list(self._children))

    def let_go(self) -> None:
        """Release what has ended here and no child has any more."""
        if not self.kept:
            return
        self._look()
        for _ in range(len(self.kept)):
            with suppress(IndexError):
                release, slot, born = item = self.kept.popleft()
                if self.may_see(born):
                    self.kept.append(item)
                else:
                    release(slot)

    def _look(self) -> None:
        if self._lock.acquire(blocking=False):  # otherwise another thread looks
            for number, ours in list(self._children.items()):
                with suppress(BlockingIOError):  # the child still runs
                    os.read(ours, 1)
                    os.close(ours)
                    del self._children[number]
            self._lock.release()

    def _before(self) -> None:
        self._lock.acquire()
        self._look()
        if _leases or self.kept:
            try:
                ours, self._theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            except OSError:  # no more files: the child's end would go unnoticed, so this memory is never used again
                _leases.clear()
                return
            self.count += 1
            self._children[self.count] = ours

    def _after_in_parent(self) -> None:
        theirs, self._theirs = self._theirs, -1
        if theirs >= 0:
            os.close(theirs)
        self._lock.release()

    def _after_in_child(self) -> None:
        _leases.clear()
        self.kept.clear()
        for ours in self._children.values():
            os.close(ours)
        self._children, self._theirs = {}, -1  # the other end stays open while this process runs
        self._lock.release()


forks = _Forks()
