"""The parent's lane: inputs are written here once, at submit, and every worker reads them in place.

Workers map it privately, so that a model that writes to its input, or a worker gone wild, changes nobody else's and a task
that has to run again finds its input untouched.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from typing import Any

import numpy as np

from rankwise.pool.arguments import check_shape
from rankwise.pool.dtypes import NUMPY
from rankwise.pool.extents import PAGE, Extents, rounded
from rankwise.pool.lease import leased, to_tensor
from rankwise.pool.segments import Segment, copy_into
from rankwise.pool.verdicts import pool_closed

FIRST_BYTES = 8 << 20
GROWTH_BYTES = 64 << 20


class Slot:
    """Some pages of a segment; `refs` counts the tasks and arrays that still need them."""

    __slots__ = ("offset", "refs", "room", "segment")

    def __init__(self, segment: int, offset: int, room: int) -> None:
        self.segment, self.offset, self.room, self.refs = segment, offset, room, 1


class Arena:
    """Segments, and who holds which pages. Safe for threads; `drop` also for finalizers."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.segments: list[Segment] = []
        self._extents: list[Extents] = []
        self._lock = threading.Lock()
        self._dropped: deque[Slot] = deque()  # a finalizer may run anywhere, also while this thread holds the lock
        self.is_closed = False
        self.lent: dict[int, Slot] = {}  # by address: what `pool.empty` gave away

    def take(self, nbytes: int) -> Slot | None:
        """Room for `nbytes`, or None where that would pass the limit. Raises PoolClosed."""
        room = rounded(nbytes)
        if self.is_closed:  # also in a forked child, whose notes of what is free are not the parent's
            raise pool_closed()
        with self._lock:
            self._collect()
            for number, extents in enumerate(self._extents):
                offset = extents.take(room) if extents.free_bytes >= room else None
                if offset is not None:
                    return Slot(number, offset, room)
            return self._grow(room)

    def hold(self, slot: Slot) -> None:
        with self._lock:
            slot.refs += 1

    def drop(self, slot: Slot) -> None:
        """One holder less. Takes effect at the next `take`."""
        self._dropped.append(slot)

    def write(self, array: np.ndarray[Any, Any]) -> Slot | None:
        slot = self.take(array.nbytes)
        if slot is not None:
            copy_into(np.ndarray(array.shape, array.dtype, self.segments[slot.segment].map, slot.offset), array)
        return slot

    def lend(self, shape: Any, dtype: str, as_tensor: bool) -> Any | None:
        """An array in lane memory; a `submit` of it copies nothing."""
        shape = check_shape(shape, NUMPY[dtype].itemsize, self.limit_bytes)
        slot = self.take(math.prod(shape) * NUMPY[dtype].itemsize)
        if slot is None:
            return None
        self.lent[self.address(slot)] = slot
        array = leased(self.segments[slot.segment], slot.offset, dtype, shape, self.drop, slot)
        return to_tensor(array, dtype) if as_tensor else array

    def lent_slot(self, array: np.ndarray[Any, Any]) -> Slot | None:
        """The slot this array fills from its beginning, held once more; None for memory that is not ours."""
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
        with self._lock:
            self._collect()
            return sum(extents.size - extents.free_bytes for extents in self._extents)

    @property
    def total_bytes(self) -> int:
        return sum(extents.size for extents in self._extents)

    def close(self) -> None:
        """Workers are gone; arrays the user still has keep their memory."""
        with self._lock:
            self.is_closed = True
            for segment in self.segments:
                segment.close()
            self.segments, self._extents, self.lent = [], [], {}

    def _collect(self) -> None:
        while self._dropped and self.segments:
            slot = self._dropped.popleft()
            slot.refs -= 1
            if slot.refs == 0:
                self.lent.pop(self.address(slot), None)
                self._extents[slot.segment].give(slot.offset, slot.room)

    def _grow(self, room: int) -> Slot | None:
        """A little more than is asked for, so that inputs that grow bit by bit do not make a segment each."""
        ample = rounded(max(room + room // 4, GROWTH_BYTES if self.segments else FIRST_BYTES))
        for free_first in (False, True):
            if free_first:
                self._retire()
            left = (self.limit_bytes - self.total_bytes) // PAGE * PAGE
            if left >= room:
                return self._added(min(ample, left), room)
        return None

    def _retire(self) -> None:
        """Segments that nobody uses any more, and that are too small now, give their memory back; their numbers stay theirs."""
        for number, extents in enumerate(self._extents):
            if extents.size and extents.is_empty:
                self.segments[number].empty()
                self._extents[number] = Extents(0)

    def _added(self, size: int, room: int) -> Slot:
        segment = Segment.create(size, "rankwise-inputs")
        if not self.segments:
            segment.fault_in(FIRST_BYTES // 4)
        extents = Extents(size)
        offset = extents.take(room)
        assert offset is not None
        self.segments.append(segment)
        self._extents.append(extents)
        return Slot(len(self.segments) - 1, offset, room)
