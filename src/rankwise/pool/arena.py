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
from rankwise.pool.extents import rounded
from rankwise.pool.lane import FIRST_BYTES, Lane
from rankwise.pool.lease import leased, to_tensor
from rankwise.pool.segments import copy_into
from rankwise.pool.verdicts import pool_closed


class Slot:
    """Some pages of a segment; `refs` counts the tasks and arrays that still need them."""

    __slots__ = ("offset", "refs", "room", "segment")

    def __init__(self, segment: int, offset: int, room: int) -> None:
        self.segment, self.offset, self.room, self.refs = segment, offset, room, 1


class Arena:
    """Segments, and who holds which pages. Safe for threads; `drop` also for finalizers."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._lane = Lane("rankwise-inputs")
        self.segments = self._lane.segments
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
            is_first = not self.segments
            place = self._lane.take(room) or self._lane.grow(room, self.limit_bytes)
            if is_first and place is not None:
                self.segments[0].fault_in(FIRST_BYTES // 4)
            return Slot(*place, room) if place is not None else None

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
            return self._lane.used_bytes

    @property
    def total_bytes(self) -> int:
        return self._lane.total_bytes

    def close(self) -> None:
        """Workers are gone; arrays the user still has keep their memory."""
        with self._lock:
            self.is_closed = True
            for segment in self.segments:
                segment.close()
            self._lane = Lane("")
            self.segments, self.lent = self._lane.segments, {}

    def _collect(self) -> None:
        while self._dropped and self.segments:
            slot = self._dropped.popleft()
            slot.refs -= 1
            if slot.refs == 0:
                self.lent.pop(self.address(slot), None)
                self._lane.give(slot.segment, slot.offset, slot.room)
