"""A timer that counts in microseconds."""

from __future__ import annotations

import ctypes
import os
import time

_libc = ctypes.PyDLL(None)  # holds the GIL: the calls are shorter than giving it away
_CLOEXEC, _NONBLOCK = 0o2000000, 0o4000


class Timer:
    """Wakes an epoll after some microseconds, which a caller has to read an answer itself; an epoll's own timeout counts in milliseconds.
    Exists only for speed. Python has a timerfd of its own from 3.13 on."""

    def __init__(self) -> None:
        self.fd = int(ctypes.CDLL(None, use_errno=True).timerfd_create(time.CLOCK_MONOTONIC, _CLOEXEC | _NONBLOCK))
        if self.fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._spec = (ctypes.c_long * 4)()  # of an interval, and until it fires: seconds and nanoseconds
        self._pointer = ctypes.byref(self._spec)

    def set(self, nanoseconds: int) -> None:
        """Fire once, that much later than now; an earlier setting is forgotten. Under a second; 0: not at all."""
        self._spec[3] = nanoseconds
        _libc.timerfd_settime(self.fd, 0, self._pointer, None)

    def clear(self) -> None:
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            pass

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        os.close(fd)
