"""An asyncio loop that reads the workers' answers itself, where its thread is the one that waits for them. Exists only for speed.

The pool's own thread would have to wake the loop for every answer, and both would fight for the interpreter: under load that takes longer
than the rest of a request.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol


class Timekeeper(Protocol):
    def next_moment(self, latest: float) -> float: ...
    def on_time(self, now: float) -> None: ...


class LoopReader:
    """Made in the loop's own thread. Calls `read` when a packet is there, and keeps the time of deadlines and of batches that wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, read: Callable[[], None], events: Timekeeper) -> None:
        self._loop, self._fd, self._read_arrived, self._events = loop, fd, read, events
        self._thread = threading.get_ident()
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = math.inf
        loop.add_reader(fd, self._read)

    def wake_by(self, moment: float) -> None:
        """From any thread."""
        if threading.get_ident() == self._thread:
            self._set_timer(moment)
        else:
            try:
                self._loop.call_soon_threadsafe(self._set_timer, moment)
            except RuntimeError:  # the loop is closed
                pass

    def stop(self) -> None:
        """In the loop's own thread."""
        self._loop.remove_reader(self._fd)
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = -math.inf

    def _read(self) -> None:
        self._read_arrived()
        self._set_timer(self._events.next_moment(math.inf))

    def _set_timer(self, moment: float) -> None:
        if moment < self._rings_at:
            if self._timer is not None:
                self._timer.cancel()
            self._rings_at = moment
            self._timer = self._loop.call_later(max(0.0, moment - time.monotonic()), self._ring)

    def _ring(self) -> None:
        self._timer, self._rings_at = None, math.inf
        self._events.on_time(time.monotonic())
        self._set_timer(self._events.next_moment(math.inf))


async def awaited(future: Any) -> Any:
    """The result of a pool's future. As `asyncio.wrap_future`, without a detour through the loop where its own thread reads the answer."""
    if future.done():
        return future.result()
    loop, thread = asyncio.get_running_loop(), threading.get_ident()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def is_done(_: Any) -> None:
        if threading.get_ident() == thread:
            wake()
        else:
            try:
                loop.call_soon_threadsafe(wake)
            except RuntimeError:  # the loop is closed, and nobody waits any more
                pass

    future.add_done_callback(is_done)
    try:
        await waiter
    except asyncio.CancelledError:
        future.cancel()
        raise
    return future.result()
