"""One shared page per worker: what it runs since when, which tasks are taken back from it, which output slots are free again.

Both sides look at it without a message, so it also tells the truth about a worker that is dead, stopped or stuck.
"""

from __future__ import annotations

import struct

from rankwise.pool.segments import Segment

SLOTS = 4096
_FLAGS = 4096
SIZE = _FLAGS + SLOTS
_RUNNING, _RECALLED = struct.Struct("<QQ"), struct.Struct("<Q")
_RECALLED_AT, _OWN_DOING_AT = 16, 24


class StatusPage:
    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._map = segment.map

    def run(self, serial: int, now_ns: int) -> None:
        """Worker: this is what I do now; serial 0 is nothing."""
        _RUNNING.pack_into(self._map, 0, serial, now_ns)

    @property
    def running(self) -> tuple[int, int]:
        """The serial and the time (monotonic, ns) of what the worker does."""
        serial, since = _RUNNING.unpack_from(self._map, 0)
        return serial, since

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
