"""Shared memory without a name: it goes away with the last process that maps it, whatever ends that process."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

import numpy as np

_POPULATE_WRITE, _DONTNEED, _REMOVE = 23, 4, 9
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
# One copy of more than a few MB is done with stores that pass by the cache; in pieces that fit it takes half the time here.
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
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
        os.ftruncate(fd, size)
        return cls(fd, size)

    def fault_in(self, size: int) -> None:
        """Touch the first bytes now rather than in somebody's first request; a kernel before 5.14 says no, which is as well."""
        _libc.madvise(self.address, min(size, self.size), _POPULATE_WRITE)

    def forget_own_writes(self, offset: int, nbytes: int) -> None:
        """Let go of private pages, so that the next look shows what the file holds. Whole pages only."""
        _libc.madvise(self.address + offset, nbytes, _DONTNEED)

    def empty(self) -> None:
        """Its pages go back to the machine, whoever else has it mapped."""
        _libc.madvise(self.address, self.size, _REMOVE)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def copy_into(target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
    """Copy an array of the same shape and type; numpy gives the GIL away meanwhile."""
    if source.nbytes <= _PIECE or not source.flags.c_contiguous:
        np.copyto(target, source)
        return
    to, come = target.reshape(-1), source.reshape(-1)
    step = _PIECE // source.itemsize
    for start in range(0, len(come), step):
        np.copyto(to[start : start + step], come[start : start + step])
