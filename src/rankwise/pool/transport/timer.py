"""A timer that wakes an epoll; Python has one of its own only from 3.13 on. Exists only for speed.

The listener gives a caller some microseconds to read an answer itself; an epoll's own timeout counts in milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import time

_libc = ctypes.PyDLL(None)  # holds the GIL: the calls are shorter than giving it away
_CLOEXEC, _NONBLOCK = 0o2000000, 0o4000


class _Spec(ctypes.Structure):
    _fields_ = [("interval_s", ctypes.c_long), ("interval_ns", ctypes.c_long), ("s", ctypes.c_long), ("ns", ctypes.c_long)]


class Timer:
    def __init__(self) -> None:
        self.fd = int(ctypes.CDLL(None, use_errno=True).timerfd_create(time.CLOCK_MONOTONIC, _CLOEXEC | _NONBLOCK))
        if self.fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._spec = _Spec()
        self._pointer = ctypes.byref(self._spec)

    def set(self, nanoseconds: int) -> None:
        """Fire once, that much later than now; an earlier setting is forgotten. Under a second; 0: not at all."""
        self._spec.ns = nanoseconds
        _libc.timerfd_settime(self.fd, 0, self._pointer, None)

    def clear(self) -> None:
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            pass

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        os.close(fd)
