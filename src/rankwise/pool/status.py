"""One shared page per worker: what it runs since when, which tasks are taken back from it, which output slots are free again.

Both sides look at it without a message, so it also tells the truth about a worker that is dead, stopped or stuck.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time
from collections.abc import Callable

from rankwise.pool.segments import Segment

SLOTS = 4096
_POSTED, _ANSWERED, _POSTED_FROM, _RUNS_ON, _AWAITS_CARD, _ITEM = 4, 5, 6, 7, 8, 9  # words of eight bytes
_CUTS, _NUM_CUTS = 256, 256  # words; more than the orders that are with a worker at once
_FLAGS = 4096
SIZE = _FLAGS + SLOTS
_RUNNING, _RECALLED = struct.Struct("<QQ"), struct.Struct("<Q")
# What takes less is quick. Who waits for it watches for so long before going to sleep, but less where the worker does not even begin.
BRISK_NS, _WATCH_NS, _BEGIN_NS = 100_000, 500_000, 40_000
_RECALLED_AT, _OWN_DOING = 16, 3

current_cpu = ctypes.PyDLL(None).sched_getcpu  # keeps the GIL: giving it away would take longer than the call


class StatusPage:
    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._map = segment.map
        self._words = memoryview(segment.map)[:_FLAGS].cast("Q")

    def run_here(self, serial: int, now_ns: int) -> None:
        """As `run`, for a parent that may be watching."""
        self._words[_RUNS_ON] = current_cpu()
        _RUNNING.pack_into(self._map, 0, serial, now_ns)

    def run(self, serial: int, now_ns: int) -> None:
        """Worker: this is what I do now; serial 0 is nothing."""
        _RUNNING.pack_into(self._map, 0, serial, now_ns)

    @property
    def running(self) -> tuple[int, int]:
        """The serial and the time (monotonic, ns) of what the worker does.

        It writes one after the other. Who looks in between sees a serial without a time, and takes it for a task that ran since the
        machine was started: so that is nothing yet.
        """
        serial, since = _RUNNING.unpack_from(self._map, 0)
        return (serial, since) if since else (0, 0)

    def chunk(self, serial: int) -> Callable[[int], bool]:
        """Worker: I run this chunk. What comes back is called with the place of each request before it begins, and says False where it
        and those behind it have been taken back."""
        words, now_ns, cut_at = self._words, time.monotonic_ns, _CUTS + serial % _NUM_CUTS

        def begins(place: int) -> bool:
            if words[cut_at] == serial:
                return False
            words[_OWN_DOING] = 0  # that was the one before
            words[_ITEM] = place
            words[1] = now_ns()
            return True

        return begins

    @property
    def item(self) -> int:
        return int(self._words[_ITEM])

    def cut(self, serial: int) -> None:
        """Parent: of this chunk, no request shall begin any more."""
        self._words[_CUTS + serial % _NUM_CUTS] = serial

    def wait_for_card(self) -> None:
        """Worker: the model has returned, and what it has asked of the card may not be done."""
        self._words[_AWAITS_CARD] = self._words[1]

    @property
    def awaits_card(self) -> bool:
        return bool(self._words[1] and self._words[_AWAITS_CARD] == self._words[1])

    def post(self, serial: int, cpu: int) -> None:
        """Parent, from this core: there is a packet for a worker that may be watching."""
        self._words[_POSTED_FROM] = cpu
        self._words[_POSTED] = serial

    def nudge(self) -> None:
        """Parent: there is a packet of another kind."""
        self._words[_POSTED] = 0

    @property
    def is_posted_from_here(self) -> bool:
        """Whether the last packet came from the core that the worker is on."""
        return bool(self._words[_POSTED_FROM] == current_cpu())

    def watch_for_post(self, last: int, until_ns: int) -> None:
        words = self._words
        while words[_POSTED] == last and time.monotonic_ns() < until_ns:
            os.sched_yield()

    def answer(self, serial: int) -> None:
        """Worker: there is an answer for a parent that may be watching."""
        self._words[_ANSWERED] = serial

    def watch_for_answer(self, serial: int, now_ns: int) -> None:
        """Not for long where the worker does not begin, or runs on this very core, which it would only get when we sleep."""
        words, soon_ns, until_ns = self._words, now_ns + _BEGIN_NS, now_ns + _WATCH_NS
        while words[_ANSWERED] != serial:
            now_ns = time.monotonic_ns()
            if now_ns > until_ns or (now_ns > soon_ns and (words[0] != serial or words[_RUNS_ON] == current_cpu())):
                return
            os.sched_yield()

    def recall(self, serial: int) -> None:
        """Parent: whatever was sent up to this serial and has not begun shall not begin."""
        _RECALLED.pack_into(self._map, _RECALLED_AT, serial)

    @property
    def recalled(self) -> int:
        return int(_RECALLED.unpack_from(self._map, _RECALLED_AT)[0])

    def note_own_doing(self) -> None:
        """Worker: the code of what I do now is about to end or stop me, or may be."""
        self._words[_OWN_DOING] = self._words[0]

    @property
    def is_own_doing(self) -> bool:
        """Whether that was said of what the worker does, or was doing when it ended."""
        serial, _ = self.running
        return bool(serial and self._words[_OWN_DOING] == serial)

    def is_taken(self, slot: int) -> bool:
        return self._map[_FLAGS + slot] != 0

    def mark(self, slot: int, taken: bool) -> None:
        """The worker takes an output slot, the parent gives it back: never both at once, so a byte is enough."""
        self._map[_FLAGS + slot] = taken
