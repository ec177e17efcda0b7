"""The short way of one task: no other task waits for the model, a worker that holds it is idle, and the caller fetches the result itself.

A process that has just been woken runs Python several times slower than one that is warm, so what counts here is how little is done
between the caller and the worker. The packet is sent as early as can be; the books are kept while the worker is busy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from marshal import dumps
from typing import Any, Protocol

from rankwise.pool.memory.encoding import EncodedInputs
from rankwise.pool.schedule.pool_state import PoolState
from rankwise.pool.schedule.state import ModelState, WorkerState
from rankwise.pool.schedule.tasks import TaskFuture, TaskOwner
from rankwise.pool.transport.handle import WorkerHandle
from rankwise.pool.transport.messages import SEND_NOW, current_cpu
from rankwise.pool.transport.spinning import BRISK_NS

BRISK_S = BRISK_NS / 1e9


class FastPathOwner(TaskOwner, Protocol):
    def go_on(self, now: float) -> None:
        """A worker has time again, and tasks wait."""
        ...


class FastPath:
    def __init__(self, state: PoolState, owner: FastPathOwner, expect: Callable[[WorkerHandle], None]) -> None:
        self._state, self._owner, self._expect = state, owner, expect
        self._lock, self._scheduler, self._arena = state.lock, state.scheduler, state.arena

    def send(self, model: ModelState, encoded: EncodedInputs) -> TaskFuture | None:
        """None where it has to queue."""
        state, scheduler = self._state, self._scheduler
        with self._lock:
            worker = scheduler.idle_holder(model)
            if worker is None or state.is_closing:
                return None
            handle: WorkerHandle = worker.handle
            if handle.known_segments < len(self._arena.segments):  # the long way shows them to it
                return None
            scheduler.serial = serial = scheduler.serial + 1
            try:
                handle.send(dumps(("one", serial, model.number, encoded[0]), 2), SEND_NOW)
            except BlockingIOError:
                return None
            except OSError:  # it is gone, which will be noticed; then its tasks run again
                pass
            handle.page.post(serial, current_cpu())
            task = TaskFuture(model, encoded, time.monotonic(), self._owner)
            if model.order_s is not None and model.order_s < BRISK_S:
                task.brisk = serial
            task.begin()
            task.has_begun = True
            scheduler.began(worker, model, task, serial)
            self._expect(handle)
            return task

    def finish(self, worker: WorkerState, message: tuple[Any, ...]) -> bool:
        """The answer to the one order a worker had, if all is as usual; False where `take_message` has to handle it."""
        _, serial, nanoseconds, ok, node, flags = message
        state, scheduler, now = self._state, self._scheduler, time.monotonic()
        with self._lock:
            order = worker.inflight.get(serial)
            if order is None or flags or not ok or order.tasks[0].is_over:
                return False
            task: Any = order.tasks[0]
            try:
                value = worker.handle.reader.value(task, node)
            except Exception:  # a result that cannot be had here
                return False
            if task.slots:
                state.let_go(task)
            is_watched = not task.finish(value)
            del worker.inflight[serial]
            scheduler.take_back(worker, order, now)
            model = order.model
            model.ran(0, nanoseconds / 1e9)
            model.counted.did_one(now - task.submitted, nanoseconds)
            is_all = not state.is_closing and not scheduler.has_waiting
        if is_watched:
            task.announce()
        if not is_all:
            self._owner.go_on(now)
        return True
