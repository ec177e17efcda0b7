"""All that a pool knows, guarded by one lock: its queues, its workers, its open tasks, and the futures that have to be told.

Futures are settled after the lock is released, because their callbacks are the user's and may submit again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from rankwise.pool.errors import deadline_exceeded, no_worker, pool_closed
from rankwise.pool.machine import Seat
from rankwise.pool.memory.shared_memory import Arena
from rankwise.pool.schedule.groups import Chunk, Item
from rankwise.pool.schedule.scheduler import Scheduler
from rankwise.pool.schedule.state import ModelState
from rankwise.pool.schedule.tasks import Deadlines, Outcome, Task, TaskFuture
from rankwise.pool.stats import Counters

log = logging.getLogger("rankwise.pool")


@dataclass(frozen=True)
class Settings:
    max_queue: int
    lane_bytes: int
    output_bytes: int
    idle_s: float | None
    seats: list[Seat]
    budgets: dict[str, int]
    plan: str = ""  # why there are so many workers
    seed: int = 0  # of all random numbers of the workers


class PoolState:
    """Tasks begin and end here. Methods take the lock themselves, or say that it is held."""

    def __init__(self, models: list[ModelState], settings: Settings) -> None:
        self.lock = threading.Lock()
        self.settings = settings
        self.scheduler = Scheduler(models, settings.budgets)
        self.arena = Arena(settings.lane_bytes)
        self.counters = Counters([model.name for model in models])
        for model in models:
            model.counted = self.counters.of(model.name)
        self.is_closing = False  # no new tasks are taken
        self.is_closed = False
        self.deadlines = Deadlines()
        self.divided: set[Task] = set()  # open requests that run as several tasks
        self.all_done = threading.Condition(self.lock)
        self._to_settle: list[tuple[Outcome | Future[None], bool, Any]] = []

    def settle(self) -> None:
        """Set the results of futures whose tasks are over."""
        while self._to_settle:
            with self.lock:
                settled, self._to_settle = self._to_settle, []
            tell(settled)

    def withdraw(self, task: Task) -> None:
        """A future is about to be cancelled: if its task has not begun, it never will, and its place in the queue is free."""
        with self.lock:
            if not task.is_over and not task.has_begun:
                task.model.queue.forget(task)
                self.counters.of(task.model.name).cancelled += 1
                self._end(task)

    def abandon(self, chunk: Chunk) -> None:
        """The caller no longer wants the results of this chunk: its requests that have not begun never will."""
        with self.lock:
            if chunk.is_over:
                return
            if chunk.is_queued:
                chunk.model.queue.forget(chunk)
                self.counters.of(chunk.model.name).cancelled += chunk.count
            elif chunk.worker is not None:
                for order in chunk.worker.inflight.values():
                    if chunk in order.tasks:
                        chunk.worker.handle.page.cut(order.serial)
            self._end(chunk)

    def forget(self, task: Task) -> bool:
        """End a task that was never queued itself, because its parts were; False where it was over already."""
        with self.lock:
            was_open = not task.is_over
            self._end(task)
        return was_open

    def has_open_tasks(self) -> bool:
        with self.lock:
            return self.is_any_open()

    def input_bytes(self) -> int:
        """Bytes of the arena that inputs of open tasks take."""
        with self.lock:
            waiting = [task for model in self.scheduler.models.values() for task in model.queue.all()]
            slots = {slot for task in (*waiting, *self._running(), *self.divided) for slot in task.slots}
        return sum([slot.room for slot in slots])

    # ---- the lock is held from here on

    def begins(self, task: Task, now: float) -> bool:
        """Whether the task may start: one that was cancelled, or whose deadline has passed, never does."""
        if task.is_over:
            return False
        if task.deadline is not None and now >= task.deadline:
            self.expire(task)
            return False
        if not task.has_begun:
            task.has_begun = True
            outcome = task.outcome
            if outcome is not None and not outcome.begin():  # a part of a request that was cancelled
                self._end(task)
                return False
        return True

    def expire(self, task: Task) -> None:
        if task.is_over or task.deadline is None:
            return
        was_running = bool(task.parts) and task.has_begun
        if task.worker is None:
            task.model.queue.forget(task)
        else:
            order = task.worker.inflight.get(task.worker.handle.page.running[0])
            was_running = order is not None and task in order.tasks
        self.counters.of(task.model.name).expired += 1
        self.fail(task, deadline_exceeded(task.model.name, task.deadline - task.submitted, was_running))

    def conclude(self, task: Task, ok: bool, value: Any) -> None:
        if ok:
            self.done(task, value)
            return
        if task.outcome is not None:
            self._to_settle.append((task.outcome, False, value))
        self._end(task)

    def done(self, task: Task, value: Any) -> None:
        """A future that no thread has looked at yet needs only its result; the others are told by `settle`."""
        if type(task) is TaskFuture:
            if task.slots:
                self.let_go(task)
            if not task.finish(value):
                self._to_settle.append((task, True, value))
            return
        if task.part is not None:
            self._to_settle.append((task.part, True, value))
        self._end(task)

    def fail(self, task: Task, error: BaseException) -> None:
        self.counters.of(task.model.name).failed += task.count
        self.conclude(task, False, error)

    def let_go(self, task: Task) -> None:
        """Give the memory of its inputs back."""
        for slot in task.slots:
            self.arena.drop(slot)
        task.slots = ()

    def done_chunk(self, chunk: Chunk) -> None:
        """All requests of the chunk have their answers."""
        self.end_parts(chunk)
        self.let_go(chunk)
        chunk.release()
        if not chunk.finish(None):
            self._to_settle.append((chunk, True, None))

    def take_from_chunk(self, chunk: Chunk, first: int) -> None:
        """The requests of the chunk from this place on wait again, each by itself."""
        self.scheduler.add_again(self._tasks_of(chunk, first))

    def dissolve(self, chunk: Chunk, running: int) -> tuple[list[Task], list[Task]]:
        """Requests of the chunk that have no answer become tasks of their own: the one that was running, and the others."""
        tasks = self._tasks_of(chunk, 0)
        chunk.worker = None
        culprit = [task for task in tasks if isinstance(task.part, Item) and task.part.place == running]
        return culprit, [task for task in tasks if task not in culprit]

    def take_back_chunks(self) -> None:
        """Requests of chunks that are with a worker and have not begun wait again."""
        for worker in self.scheduler.workers.values():
            page = worker.handle.page
            for order in worker.inflight.values():
                if order.tasks and isinstance(chunk := order.tasks[0], Chunk):
                    page.cut(order.serial)
                    self.take_from_chunk(chunk, page.item + 1 if page.running[0] == order.serial else 0)

    def end_parts(self, task: Task) -> None:
        """Parts that wait never begin; results of parts that run are thrown away."""
        self.divided.discard(task)
        parts, task.parts = task.parts, ()
        for part in parts:
            part.model.queue.forget(part)
            self._end(part)

    def tell_loaded(self, model: ModelState) -> None:
        if model.awaiting_load and self.scheduler.is_loaded(model):
            self._to_settle += [(future, True, None) for future in model.awaiting_load]
            model.awaiting_load = []

    def tell_not_loaded(self, model: ModelState, error: Exception) -> None:
        self._to_settle += [(future, False, error) for future in model.awaiting_load]
        model.awaiting_load = []

    def break_model(self, model: ModelState, error: Exception) -> None:
        """All tasks of this model fail with this error, now and later."""
        model.broken = error
        waiting, wanted = model.queue.all(), model.awaiting_load
        self._to_settle += [(future, False, error) for future in wanted]
        model.awaiting_load = []
        if not waiting and not wanted:  # otherwise their futures tell it
            log.error("%s", error)
        for task in waiting:
            model.queue.forget(task)
            self.fail(task, error)

    def break_all(self, why: str) -> None:
        error = no_worker(why)
        for model in self.scheduler.models.values():
            self.break_model(model, error)

    def give_up(self, why: str) -> None:
        """Tasks that are under way fail as well, because no thread will read their answers."""
        self.break_all(why)
        self.fail_running(no_worker(why))

    def fail_waiting(self) -> None:
        for model in self.scheduler.models.values():
            self._to_settle += [(future, False, pool_closed()) for future in model.awaiting_load]
            model.awaiting_load = []
            for task in model.queue.all():
                model.queue.forget(task)
                self.fail(task, pool_closed())

    def fail_running(self, error: BaseException) -> None:
        for task in self._running():
            self.fail(task, error)

    def refused(self, task: Task) -> None:
        """The task was never taken. A chunk is tried again, so it keeps what it has."""
        if not isinstance(task, Chunk):
            self._end(task)

    def is_any_open(self) -> bool:
        return self.scheduler.has_waiting or bool(self.divided) or bool(self._running())

    def _running(self) -> list[Task]:
        orders = [order for worker in self.scheduler.workers.values() for order in worker.inflight.values()]
        return [task for order in orders for task in order.tasks if not task.is_over]

    def _tasks_of(self, chunk: Chunk, first: int) -> list[Task]:
        tasks = [] if chunk.is_over else chunk.tasks_from(first)
        if tasks:
            self.divided.add(chunk)
        return tasks

    def _end(self, task: Task) -> None:
        if not task.is_over:
            if task.parts:
                self.end_parts(task)
            self.let_go(task)
            task.end()  # it knows its worker, and so its lanes: they would wait for the garbage collector


def tell(settled: Sequence[tuple[Outcome | Future[None], bool, Any]]) -> None:
    """Settle futures whose tasks are over; a `TaskFuture` that worked has its result already. No lock is held."""
    for future, ok, value in settled:
        try:
            if ok and isinstance(future, TaskFuture):
                future.announce()
            elif ok:
                future.set_result(value)
            elif future.running() or future.set_running_or_notify_cancel():
                future.set_exception(value)
        except Exception:
            log.exception("a future could not be settled")
