"""One shared page per worker: what it runs since when, which tasks are taken back from it, which output slots are free again.

Both sides look at it without a message, so it also tells the truth about a worker that is dead, stopped or stuck.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time

from rankwise.pool.segments import Segment

SLOTS = 4096
_POSTED, _ANSWERED, _CPU = 4, 5, 6  # words of eight bytes
_FLAGS = 4096
SIZE = _FLAGS + SLOTS
_RUNNING, _RECALLED = struct.Struct("<QQ"), struct.Struct("<Q")
# Who has just answered something quick, or waits for it, watches for this long before going to sleep; others on the core go first.
BRISK_NS, WATCH_NS = 100_000, 500_000
_RECALLED_AT, _OWN_DOING_AT = 16, 24

current_cpu = ctypes.PyDLL(None).sched_getcpu  # keeps the GIL: giving it away would take longer than the call


class StatusPage:
    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._map = segment.map
        self._words = memoryview(segment.map)[:_FLAGS].cast("Q")

    def run(self, serial: int, now_ns: int) -> None:
        """Worker: this is what I do now; serial 0 is nothing."""
        _RUNNING.pack_into(self._map, 0, serial, now_ns)

    @property
    def running(self) -> tuple[int, int]:
        """The serial and the time (monotonic, ns) of what the worker does."""
        serial, since = _RUNNING.unpack_from(self._map, 0)
        return serial, since

    def post(self, serial: int) -> None:
        """Parent: there is a packet for a worker that may be watching."""
        self._words[_POSTED] = serial

    def answer(self, serial: int, cpu: int) -> None:
        """Worker, from this core: there is an answer for a parent that may be watching."""
        self._words[_CPU] = cpu
        self._words[_ANSWERED] = serial

    def watch_for_post(self, last: int, until_ns: int) -> None:
        words = self._words
        while words[_POSTED] == last and time.monotonic_ns() < until_ns:
            os.sched_yield()

    def watch_for_answer(self, serial: int, cpu: int, until_ns: int) -> None:
        """Not where the worker was last seen on this very core: then it cannot answer before we sleep."""
        words = self._words
        if words[_CPU] != cpu:
            while words[_ANSWERED] != serial and time.monotonic_ns() < until_ns:
                os.sched_yield()

    def recall(self, serial: int) -> None:
        """Parent: whatever was sent up to this serial and has not begun shall not begin."""
        _RECALLED.pack_into(self._map, _RECALLED_AT, serial)

    @property
    def recalled(self) -> int:
        return int(_RECALLED.unpack_from(self._map, _RECALLED_AT)[0])

    def note_own_doing(self) -> None:
        """Worker: the code I run is about to end me."""
        self._map[_OWN_DOING_AT] = 1

    @property
    def is_own_doing(self) -> bool:
        return self._map[_OWN_DOING_AT] != 0

    def is_taken(self, slot: int) -> bool:
        return self._map[_FLAGS + slot] != 0

    def mark(self, slot: int, taken: bool) -> None:
        """The worker takes an output slot, the parent gives it back: never both at once, so a byte is enough."""
        self._map[_FLAGS + slot] = taken
