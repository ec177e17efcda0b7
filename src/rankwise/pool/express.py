"""The short way of one task: nobody waits for the model, a worker that has it is idle, and the caller fetches the result itself.

A process that has just been woken runs Python several times slower than one that is warm, so what counts here is how little is done
between the caller and the worker. The packet is sent as early as can be; the books are kept while the worker is busy.
"""

from __future__ import annotations

import time
from marshal import dumps
from typing import TYPE_CHECKING, Any

from rankwise.pool.crew import Edge
from rankwise.pool.schedule import ModelState, WorkerState
from rankwise.pool.status import BRISK_NS, current_cpu
from rankwise.pool.tasks import Parcel, TaskFuture
from rankwise.pool.wire import SEND_NOW

if TYPE_CHECKING:
    from rankwise.pool.dispatch import Dispatcher

BRISK_S = BRISK_NS / 1e9


class Express:
    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._lock, self._scheduler, self._arena = dispatcher.lock, dispatcher.scheduler, dispatcher.arena

    def send(self, model: ModelState, parcel: Parcel) -> TaskFuture | None:
        """None where it has to queue."""
        dispatcher, scheduler = self._dispatcher, self._scheduler
        with self._lock:
            worker = scheduler.idle_holder(model)
            if worker is None or dispatcher.is_closing:
                return None
            edge: Edge = worker.edge
            if edge.known_segments < len(self._arena.segments):  # the long way shows them to it
                return None
            scheduler.serial = serial = scheduler.serial + 1
            try:
                edge.send(dumps(("one", serial, model.number, parcel[0]), 2), SEND_NOW)
            except BlockingIOError:
                return None
            except OSError:  # it is gone, which will be noticed; then its tasks run again
                pass
            edge.page.post(serial, current_cpu())
            task = TaskFuture(model, parcel, time.monotonic(), dispatcher)
            if model.order_s is not None and model.order_s < BRISK_S:
                task.brisk = serial
            task.begin()
            task.has_begun = True
            scheduler.began(worker, model, task, serial)
            dispatcher.listener.expect(edge)
            return task

    def finish(self, worker: WorkerState, message: tuple[Any, ...]) -> bool:
        """The answer to the one order a worker had, if all is as usual; False where somebody has to look closer."""
        _, serial, nanoseconds, ok, node, flags = message
        dispatcher, scheduler, now = self._dispatcher, self._scheduler, time.monotonic()
        with self._lock:
            order = worker.inflight.get(serial)
            if order is None or flags or not ok or order.tasks[0].is_over:
                return False
            task: Any = order.tasks[0]
            try:
                value = worker.edge.reader.value(task, node)
            except Exception:  # a result that cannot be had here
                return False
            if task.slots:
                dispatcher.let_go(task)
            is_watched = not task.finish(value)
            del worker.inflight[serial]
            scheduler.take_back(worker, order, now)
            model = order.model
            model.ran(0, nanoseconds / 1e9)
            model.counted.did_one(now - task.submitted, nanoseconds)
            is_all = not dispatcher.is_closing and not scheduler.has_waiting
        if is_watched:
            task.announce()
        if not is_all:
            dispatcher.go_on(now)
        return True
