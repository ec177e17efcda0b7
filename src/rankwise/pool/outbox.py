"""Sends workers what the scheduler has decided: orders, models to load, models to drop.

The dispatcher's lock is held in all of this.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.errors import UsageError
from rankwise.pool.crew import Edge
from rankwise.pool.packets import LaneFull, left_behind, parts_of
from rankwise.pool.parcel import Part
from rankwise.pool.schedule import Action, Drop, Load, ModelState, Order, Run, WorkerState
from rankwise.pool.wire import INLINE_BYTES, send
from rankwise.sizes import bytes_text

if TYPE_CHECKING:
    from rankwise.pool.dispatch import Dispatcher

log = logging.getLogger("rankwise.pool")
# Quick tasks share an answer, but nobody waits long for it; of a stream, a worker answers while it still has half of what it was given.
PROMPT_NS, LAZY_NS = 200_000, 15_000_000


class Outbox:
    def __init__(self, dispatcher: Dispatcher, specs: dict[int, bytes]) -> None:
        self._dispatcher, self._scheduler, self._arena = dispatcher, dispatcher.scheduler, dispatcher.arena
        self._specs = {number: self._place(spec) for number, spec in specs.items()}

    def act(self, actions: list[Action], now: float) -> None:
        for action in actions:
            if isinstance(action, Run):
                self._send_orders(action.worker, action.orders, now)
            elif isinstance(action, Load):
                self._send_load(action.worker, action.model)
            else:
                self._send_drop(action)

    def _send_orders(self, worker: WorkerState, orders: list[Order], now: float) -> None:
        items = []
        for order in orders:
            order.tasks = [task for task in order.tasks if self._dispatcher.begins(task, now)]
            if order.tasks:
                items.append((order.serial, order.model.number, self._parts_of(order)))
                continue
            del worker.inflight[order.serial]
            self._scheduler.take_back(worker, order, now)
        is_lazy = all(task.is_lazy for order in orders for task in order.tasks)
        patience_ns = max(PROMPT_NS, min(LAZY_NS, int(worker.ahead_s * 5e8))) if is_lazy else PROMPT_NS
        if items and not self._send(worker, ("run", items, patience_ns)):
            for order in reversed([order for order in orders if order.serial in worker.inflight]):
                del worker.inflight[order.serial]
                self._scheduler.take_back(worker, order, now)
                self._scheduler.add_again(order.tasks)

    def _parts_of(self, order: Order) -> list[Part] | tuple[Any, ...]:
        try:
            return parts_of(order, self._arena)
        except LaneFull:  # it may stay so for as long as the caller likes to keep what is there
            self._scheduler.add_again(left_behind(order))
            return parts_of(order, self._arena)

    def _send_load(self, worker: WorkerState, model: ModelState) -> None:
        serial = next(serial for serial, order in worker.inflight.items() if order.is_load and order.model is model)
        self._send(worker, ("load", serial, model.number, self._specs[model.number]), must=True)

    def _place(self, spec: bytes) -> Any:
        """Where workers find it: in the message, or on the lane once for all of them, for as long as the pool lives."""
        if len(spec) <= INLINE_BYTES:
            return spec
        slot = self._arena.write(np.frombuffer(spec, np.uint8))
        if slot is None:
            raise UsageError(
                f"a model's build takes {bytes_text(len(spec))} as it is sent to the workers, more than there is room for on the lane",
                why="what the callable carries along is part of it",
                next=("load weights inside the build, or give them as weights=…", "a larger lane_bytes="),
            )
        return slot.segment, slot.offset, len(spec)

    def _send_drop(self, action: Drop) -> None:
        self._dispatcher.counters.of(action.model.name).evictions += 1
        log.info("model %r leaves worker %d", action.model.name, action.worker.number)
        self._send(action.worker, ("drop", action.model.number), must=True)

    def _send(self, worker: WorkerState, message: tuple[Any, ...], must: bool = False) -> bool:
        """False where the worker's socket is full. A worker that is gone takes everything: its end gives it all back."""
        edge: Edge = worker.edge
        self._dispatcher.listener.expect(edge)
        try:
            while edge.known_segments < len(self._arena.segments):
                segment = self._arena.segments[edge.known_segments]
                if not send(edge.sock, ("segment", segment.size), (segment.fd,), wait=must):
                    return False
                edge.known_segments += 1
            is_sent = send(edge.sock, message, wait=must)
            edge.page.nudge()
            return is_sent
        except OSError as error:
            if error.errno == errno.EMSGSIZE:  # nobody will answer, so somebody has to say so
                self._dispatcher.give_up_now("a packet was larger than a socket takes, which is a fault of rankwise")
            return True
