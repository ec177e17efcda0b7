"""The worker's lane: outputs are written here once, and the parent reads them in place."""

from __future__ import annotations

import socket
import time
from typing import Any

import numpy as np

from rankwise.pool.extents import Extents, rounded
from rankwise.pool.segments import Segment, copy_into
from rankwise.pool.status import SLOTS, StatusPage
from rankwise.pool.wire import INLINE_BYTES, send

_FIRST_BYTES, _GROWTH_BYTES = 8 << 20, 64 << 20
_ALIAS_BYTES = 256 << 10  # below, a copy is cheaper than making sure that there need not be one
_PATIENCE_S = 0.5
_SPARE = 8


class Outputs:
    """Segments this worker made, and the slots the parent has not given back yet."""

    def __init__(self, sock: socket.socket, page: StatusPage, soft_limit: int, alias: Any) -> None:
        self._sock, self._page, self._soft_limit, self._alias = sock, page, soft_limit, alias
        self._segments: list[Segment] = []
        self._extents: list[Extents] = []
        self._out: dict[int, tuple[int, int, int]] = {}  # slot: segment, offset, room
        self._free = list(range(SLOTS))
        self._collect_at = 0  # so many slots out that it is time to look which came back: each look is at all of them
        self.inline_bytes = INLINE_BYTES  # up to here, an array goes into the message

    def put(self, array: np.ndarray[Any, Any], owner: Any) -> Any:
        """For `pack`: the bytes themselves, the input it is, or a place in the lane."""
        nbytes = array.nbytes
        if nbytes <= self.inline_bytes:
            return array.tobytes()
        if nbytes >= _ALIAS_BYTES and owner is not array and array.flags.c_contiguous:
            place = self._alias(owner)
            if place is not None:
                return place
        slot = self._take(rounded(nbytes))
        number, offset, _ = self._out[slot]
        copy_into(np.ndarray(array.shape, array.dtype, self._segments[number].map, offset), array)
        return ("o", number, offset, nbytes, slot)

    def _take(self, room: int) -> int:
        if len(self._out) >= self._collect_at:
            self._collect()
        slot = self._fit(room)
        started = time.monotonic()
        while slot is None:
            self._collect()
            slot = self._fit(room)
            if slot is None and self._free:
                within = sum(segment.size for segment in self._segments) + room <= self._soft_limit
                if within or time.monotonic() - started > _PATIENCE_S:  # the parent copies what it can, so this is a user who keeps it all
                    return self._grow(room)
            if slot is None:
                time.sleep(0.0005)
        return slot

    def _fit(self, room: int) -> int | None:
        if self._free:
            for number, extents in enumerate(self._extents):
                offset = extents.take(room) if extents.free_bytes >= room else None
                if offset is not None:
                    return self._mark(number, offset, room)
        return None

    def _mark(self, number: int, offset: int, room: int) -> int:
        slot = self._free.pop()
        self._out[slot] = (number, offset, room)
        self._page.mark(slot, True)
        return slot

    def _collect(self) -> None:
        for slot in [slot for slot in self._out if not self._page.is_taken(slot)]:
            number, offset, room = self._out.pop(slot)
            self._extents[number].give(offset, room)
            self._free.append(slot)
        self._collect_at = 2 * len(self._out) + _SPARE

    def _grow(self, room: int) -> int:
        size = max(room, _GROWTH_BYTES if self._segments else _FIRST_BYTES)
        segment, extents = Segment.create(size, "rankwise-outputs"), Extents(size)
        offset = extents.take(room)
        assert offset is not None
        self._segments.append(segment)
        self._extents.append(extents)
        send(self._sock, ("segment", size), (segment.fd,), wait=True)
        segment.close()
        return self._mark(len(self._segments) - 1, offset, room)
