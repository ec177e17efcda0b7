"""Segments of shared memory that grow with what they have to hold, and which pages of them are free."""

from __future__ import annotations

from rankwise.pool.extents import PAGE, Extents, rounded
from rankwise.pool.segments import Segment

FIRST_BYTES = 8 << 20
GROWTH_BYTES = 64 << 20


class Lane:
    """A place is the number of a segment and an offset in it. Not safe for threads."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.segments: list[Segment] = []  # those that were given up keep their number, and have no memory
        self._extents: list[Extents] = []

    @property
    def total_bytes(self) -> int:
        return sum([extents.size for extents in self._extents])

    @property
    def used_bytes(self) -> int:
        return sum([extents.size - extents.free_bytes for extents in self._extents])

    def take(self, room: int) -> tuple[int, int] | None:
        for number, extents in enumerate(self._extents):
            offset = extents.take(room) if extents.free_bytes >= room else None
            if offset is not None:
                return number, offset
        return None

    def give(self, number: int, offset: int, room: int) -> None:
        self._extents[number].give(offset, room)

    def grow(self, room: int, limit_bytes: int) -> tuple[int, int] | None:
        """A new segment and a place in it, or None where that would pass the limit. It has a little more than is asked for, so that what
        grows bit by bit does not make a segment each time."""
        ample = rounded(max(room + room // 4, GROWTH_BYTES if self.segments else FIRST_BYTES))
        for free_first in (False, True):
            if free_first:
                self._retire()
            left = (limit_bytes - self.total_bytes) // PAGE * PAGE
            if left >= room:
                return self.add(min(ample, left), room)
        return None

    def add(self, size: int, room: int) -> tuple[int, int]:
        self.segments.append(Segment.create(size, self._name))
        self._extents.append(Extents(size))
        offset = self._extents[-1].take(room)
        assert offset is not None
        return len(self.segments) - 1, offset

    def _retire(self) -> None:
        """Segments that nobody uses any more, and that are too small now, give their memory back."""
        for number, extents in enumerate(self._extents):
            if extents.size and extents.is_empty:
                self.segments[number].empty()
                self._extents[number] = Extents(0)
