"""The worker's lane: outputs are written here once, and the parent reads them in place."""

from __future__ import annotations

import socket
import time
from typing import Any

import numpy as np

from rankwise.pool.extents import rounded
from rankwise.pool.lane import Lane
from rankwise.pool.segments import copy_into
from rankwise.pool.status import SLOTS, StatusPage
from rankwise.pool.wire import INLINE_BYTES, send

_ALIAS_BYTES = 256 << 10  # below, a copy is cheaper than making sure that there need not be one
_PATIENCE_S = 0.5
_SPARE = 8


class Outputs:
    """Segments this worker made, and the slots the parent has not given back yet."""

    def __init__(self, sock: socket.socket, page: StatusPage, soft_limit: int, alias: Any) -> None:
        self._sock, self._page, self._soft_limit, self._alias = sock, page, soft_limit, alias
        self._lane = Lane("rankwise-outputs")
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
        copy_into(np.ndarray(array.shape, array.dtype, self._lane.segments[number].map, offset), array)
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
                is_late = time.monotonic() - started > _PATIENCE_S  # the parent copies what it can, so this is a user who keeps it all
                slot = self._grown(room, is_late)
            if slot is None:
                time.sleep(0.0005)
        return slot

    def _fit(self, room: int) -> int | None:
        place = self._lane.take(room) if self._free else None
        return self._mark(*place, room) if place is not None else None

    def _mark(self, number: int, offset: int, room: int) -> int:
        slot = self._free.pop()
        self._out[slot] = (number, offset, room)
        self._page.mark(slot, True)
        return slot

    def _collect(self) -> None:
        for slot in [slot for slot in self._out if not self._page.is_taken(slot)]:
            number, offset, room = self._out.pop(slot)
            self._lane.give(number, offset, room)
            self._free.append(slot)
        self._collect_at = 2 * len(self._out) + _SPARE

    def _grown(self, room: int, must: bool) -> int | None:
        place = self._lane.grow(room, self._soft_limit)
        if place is None and must:
            place = self._lane.add(room, room)
        if place is None:
            return None
        segment = self._lane.segments[-1]
        send(self._sock, ("segment", segment.size), (segment.fd,), wait=True)
        segment.close()
        return self._mark(*place, room)
