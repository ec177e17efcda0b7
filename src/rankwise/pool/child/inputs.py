"""Inputs as the model sees them: tensors right on the parent's lane, through a mapping that keeps the model's writes private."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

from rankwise.pool.dtypes import NUMPY
from rankwise.pool.extents import PAGE, rounded
from rankwise.pool.lease import to_tensor
from rankwise.pool.parcel import as_array
from rankwise.pool.segments import Segment

_ENTRY = 8  # bytes per page in /proc/self/pagemap
# The highest byte of an entry says whether the page is there (0x80), in swap (0x40), and still the file's (0x20).
_CLEAN = bytes(byte for byte in range(256) if not byte & 0xC0 or byte & 0x20)


def copied(array: np.ndarray[Any, Any], owner: Any) -> np.ndarray[Any, Any]:
    """For `pack`, where nothing leaves the process: the place of an array is a copy of it."""
    return np.array(array, order="C")


def seen(place: Any, dtype: str, shape: tuple[int, ...], as_tensor: bool) -> Any:
    """For `unpack`, of what `copied` kept. numpy arrays become tensors as well: that is what a model takes."""
    if type(place) is bytes:
        return as_array(bytearray(place), dtype, shape, dtype != "raw")
    return place if dtype == "raw" else to_tensor(place, dtype)


class Inputs:
    """The lane as this worker maps it, and which parts of it the task at hand uses."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.in_use: list[tuple[Any, Segment, int, int]] = []  # the array behind each tensor, and where it lies
        self.pagemap = open_pagemap()

    def add_segment(self, fd: int, size: int) -> None:
        self.segments.append(Segment(fd, size, private=True))
        self.segments[-1].close()  # the mapping is enough

    def get(self, place: Any, dtype: str, shape: tuple[int, ...], as_tensor: bool) -> Any:
        """For `unpack`; as `seen`, of what lies on the lane."""
        if type(place) is bytes:
            return seen(place, dtype, shape, as_tensor)
        number, offset, nbytes = place
        segment = self.segments[number]
        array: np.ndarray[Any, Any] = np.ndarray(shape, NUMPY[dtype], segment.map, offset)
        self.in_use.append((array, segment, offset, nbytes))
        return array if dtype == "raw" else to_tensor(array, dtype)

    def raw(self, place: Any) -> bytes:
        if type(place) is bytes:
            return place
        number, offset, nbytes = place
        return bytes(self.segments[number].map[offset : offset + nbytes])

    def alias(self, tensor: Any) -> tuple[Any, ...] | None:
        """Where on the lane this output already lies, if it is an input (or part of one) that nobody has written to."""
        start, nbytes = tensor.data_ptr(), tensor.nbytes
        for _, segment, offset, size in self.in_use:
            first = segment.address + offset
            if first <= start and start + nbytes <= first + size:
                return ("i", self.segments.index(segment), start - segment.address, nbytes) if self._is_clean(start, nbytes) else None
        return None

    def is_kept(self) -> bool:
        """Whether the model has kept one of the task's inputs: then a tensor still stands on the array."""
        return any(sys.getrefcount(used[0]) > 2 for used in self.in_use)  # its place in the tuple, and the call itself

    def finish(self) -> None:
        """The task is done: forget what the model wrote to its inputs, so that the next one shows what the parent wrote."""
        self.restore()
        self.in_use.clear()

    def restore(self) -> None:
        """The same in the middle of a task. To look whether anything was written takes a fraction of the time to map it all again."""
        for _, segment, offset, nbytes in self.in_use:
            if not self._is_clean(segment.address + offset, nbytes):
                first = offset - offset % PAGE  # a part of a larger request need not begin at a page
                segment.forget_own_writes(first, rounded(offset + nbytes - first))

    def _is_clean(self, start: int, nbytes: int) -> bool:
        return self.pagemap >= 0 and _is_untouched(self.pagemap, start, nbytes)


def open_pagemap(path: str = "/proc/self/pagemap") -> int:
    """-1 where the kernel has none, or one that does not tell what a model wrote to from what it did not: results would go wrong."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
    tried = Segment.create(2 * PAGE, "rankwise-tried")
    mine = Segment(tried.fd, 2 * PAGE, private=True)
    mine.view[0] = mine.view[PAGE] + 1  # one page is written to, the other only read
    try:
        if _is_untouched(fd, mine.address + PAGE, PAGE) and not _is_untouched(fd, mine.address, PAGE):
            return fd
    except OSError:
        pass
    finally:
        tried.close()
    os.close(fd)
    return -1


def _is_untouched(pagemap: int, start: int, nbytes: int) -> bool:
    first, last = start // PAGE, (start + nbytes - 1) // PAGE
    size = (last - first + 1) * _ENTRY
    entries = os.pread(pagemap, size, first * _ENTRY)
    return len(entries) == size and not entries[_ENTRY - 1 :: _ENTRY].translate(None, _CLEAN)
