"""Inputs as the model sees them: tensors right on the parent's lane, through a mapping that keeps the model's writes private."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

from rankwise.pool.extents import PAGE, rounded
from rankwise.pool.parcel import as_array
from rankwise.pool.segments import Segment

_ENTRY = 8  # bytes per page in /proc/self/pagemap
_PRESENT, _OF_FILE = np.uint64(1 << 63), np.uint64(1 << 61)


class Inputs:
    """The lane as this worker maps it, and which parts of it the task at hand uses."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self._in_use: list[tuple[Any, Segment, int, int]] = []  # the buffer behind each tensor, and where it lies
        self._pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)

    def add_segment(self, fd: int, size: int) -> None:
        self.segments.append(Segment(fd, size, private=True))
        self.segments[-1].close()  # the mapping is enough

    def get(self, place: Any, dtype: str, shape: tuple[int, ...], as_tensor: bool) -> Any:
        """For `unwrap`. numpy arrays become tensors as well: that is what a model takes."""
        if type(place) is bytes:
            return as_array(bytearray(place), dtype, shape, True)
        number, offset, nbytes = place
        segment = self.segments[number]
        buffer = memoryview(segment.map)[offset : offset + nbytes]
        self._in_use.append((buffer, segment, offset, nbytes))
        return as_array(buffer, dtype, shape, True)

    def raw(self, place: Any) -> bytes:
        if type(place) is bytes:
            return place
        number, offset, nbytes = place
        return bytes(self.segments[number].map[offset : offset + nbytes])

    def alias(self, tensor: Any) -> tuple[Any, ...] | None:
        """Where on the lane this output already lies, if it is an input (or part of one) that nobody has written to."""
        start, nbytes = tensor.data_ptr(), tensor.nbytes
        for _, segment, offset, size in self._in_use:
            first = segment.address + offset
            if first <= start and start + nbytes <= first + size:
                return ("i", self.segments.index(segment), start - segment.address, nbytes) if self._is_clean(start, nbytes) else None
        return None

    def finish(self) -> bool:
        """The task is done: forget what the model wrote to its inputs. True if the model has kept one of them."""
        kept = False
        while self._in_use:
            buffer, segment, offset, nbytes = self._in_use.pop()
            if sys.getrefcount(buffer) > 2:  # the name here and the argument: more means that a tensor still stands on it
                kept = True
            first = offset - offset % PAGE  # a part of a larger request need not begin at a page
            segment.forget_own_writes(first, rounded(offset + nbytes - first))
        return kept

    def _is_clean(self, start: int, nbytes: int) -> bool:
        first, last = start // PAGE, (start + nbytes - 1) // PAGE
        entries = np.frombuffer(os.pread(self._pagemap, (last - first + 1) * _ENTRY, first * _ENTRY), np.uint64)
        return not bool(((entries & _PRESENT != 0) & (entries & _OF_FILE == 0)).any())
