"""The state of a pool, guarded by one lock: its queues, its workers, its open tasks, and the futures that still need their result.

Futures are settled after the lock is released, because their callbacks are the user's and may submit again.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NoReturn

from rankwise.pool.errors import deadline_exceeded, no_worker, pool_closed, pool_elsewhere, pool_full, removed, too_large
from rankwise.pool.memory.shared_memory import Arena
from rankwise.pool.schedule.scheduler import Scheduler
from rankwise.pool.schedule.state import Deadlines, ModelState, Order, PoolPlan, WorkerState, monotonic, monotonic_ns
from rankwise.pool.schedule.tasks import Chunk, Item, Task, TaskFuture
from rankwise.pool.stats import Counters

log = logging.getLogger("rankwise.pool")
_NEXT_REPLICA_S = 60.0


@dataclass(frozen=True)
class Settings:
    max_queue: int
    lane_bytes: int
    output_bytes: int
    idle_s: float | None
    plan: PoolPlan
    budgets: dict[str, int]
    seed: int  # of all random numbers of the workers


class PoolState:
    """Begins and ends tasks. Methods take the lock themselves, except for those below the line that says it is held."""

    def __init__(self, models: list[ModelState], settings: Settings) -> None:
        self.lock = threading.Lock()
        self.settings = settings
        self.scheduler = Scheduler(models, settings.budgets)
        self.arena = Arena(settings.lane_bytes)
        self.counters = Counters([model.name for model in models])
        for model in models:
            model.counted = self.counters.of(model.name)
            _break_if_too_large(model, settings.budgets)
        self._departing: list[ModelState] = []  # removed models that have tasks left or are still held by a worker
        self.is_closing = False  # no new tasks are taken
        self.is_closed = False
        self.closed = pool_closed  # makes the error that is raised then
        self.deadlines = Deadlines()
        self.divided: set[Task] = set()  # open requests that run as several tasks
        self.all_done = threading.Condition(self.lock)
        self._to_settle: deque[tuple[Task | Future[None], bool, Any]] = deque()

    def settle(self) -> None:
        """Set the results of futures whose tasks are over. No lock is held."""
        while self._to_settle:
            try:
                future, ok, value = self._to_settle.popleft()  # one at a time: if a signal handler raises, the others stay
            except IndexError:  # another thread was quicker
                return
            try:
                if isinstance(future, Task):
                    future.settle(ok, value)
                elif ok:
                    future.set_result(value)
                elif future.set_running_or_notify_cancel():
                    future.set_exception(value)
            except Exception:
                log.exception("a future could not be settled")
            except BaseException:  # sys.exit in a callback, say: it ends no thread of ours
                if not threading.current_thread().name.startswith("rankwise-"):
                    raise
                log.exception("a callback tried to end the thread that it ran in")

    def forget_after_fork(self) -> None:
        """In a forked child: the pool is the parent's. Its locks are made anew, because a thread that held one does not exist here."""
        locks: tuple[Any, ...] = self.lock, self.arena.lock
        for lock in locks:
            lock._at_fork_reinit()  # as the standard library does with its own
        self.is_closed = self.is_closing = self.arena.is_closed = True
        self.closed = self.arena.closed = pool_elsewhere

    def close(self, cancel: bool, timeout: float | None) -> None:
        """Take no new tasks; wait for the tasks that are there, or cancel the waiting ones."""
        end = None if timeout is None else monotonic() + timeout
        with self.lock:
            self.is_closing = True
            if cancel:
                self._take_back_chunks()
                self.fail_waiting()
        self.settle()
        with self.lock:
            while self.is_any_open() and not self.is_closed and (end is None or monotonic() < end):
                self.all_done.wait(0.05)
            self.is_closed = True
            self.fail_waiting()
            self.fail_running(pool_closed())
            self.all_done.notify_all()
        self.settle()

    def withdraw(self, task: Task) -> None:
        """Called before the task's future is cancelled. A task that has not begun never will, and its place in the queue is free. In a
        chunk that has begun, the same holds for each request that has not."""
        with self.lock:
            is_chunk = isinstance(task, Chunk)
            if task.is_over or (task.has_begun and not is_chunk):
                return
            if is_chunk and task.worker is not None:
                for order in task.worker.inflight.values():
                    if task in order.tasks:
                        task.worker.handle.page.cut(order.serial)
            elif task.is_queued or not is_chunk:
                task.model.queue.forget(task)
                self.counters.of(task.model.name).cancelled += task.count
            self._end(task)

    def forget(self, task: Task) -> bool:
        """End a task that was never queued itself, because its parts were; False if it was over already."""
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

    def snapshot(self) -> dict[str, Any]:
        """The pool at one moment, as plain data: what `stats()`, the metrics and `rankwise top` show."""
        workers = self.scheduler.workers
        with self.lock:
            models = {model.name: self._shown_model(model) for model in self.scheduler.models.values() if model.is_current}
            shown = [_shown_worker(worker) for worker in workers.values()]
            restarts = self.counters.restarts
        lanes = {"inputs_used_bytes": self.arena.used_bytes(), "inputs_bytes": self.arena.total_bytes}
        plan = self.settings.plan.why
        return {"pid": os.getpid(), "plan": plan, "models": models, "workers": shown, "restarts": restarts, "lanes": lanes}

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
            if not task.begin():  # a part of a request that was cancelled
                self._end(task)
                return False
        return True

    def expire(self, task: Task) -> None:
        if task.is_over or task.deadline is None:
            return
        was_running = task.has_begun and not task.is_queued
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
        else:
            self._to_settle.append((task, False, value))
            self._end(task)

    def done(self, task: Task, value: Any) -> None:
        """A future that no thread has looked at yet needs only its result; `settle` tells the threads that wait for other futures."""
        if type(task) is TaskFuture:
            if task.slots:
                self.let_go(task)
            if not task.finish(value):
                self._to_settle.append((task, True, value))
            return
        self._to_settle.append((task, True, value))
        self._end(task)

    def fail(self, task: Task, error: BaseException) -> None:
        self.counters.of(task.model.name).failed += task.count
        self.conclude(task, False, error)

    def let_go(self, task: Task) -> None:
        for slot in task.slots:
            self.arena.drop(slot)
        task.slots = ()

    def done_chunk(self, chunk: Chunk) -> None:
        self.end_parts(chunk)
        self.let_go(chunk)
        chunk.release()
        if not chunk.finish(None):
            self._to_settle.append((chunk, True, None))

    def take_from_chunk(self, chunk: Chunk, first: int) -> None:
        """Make the requests of the chunk from this place on wait again, each by itself."""
        self.scheduler.add_again(self._tasks_of(chunk, first))

    def dissolve(self, chunk: Chunk, running: int) -> tuple[list[Task], list[Task]]:
        """Make the requests of the chunk that have no answer tasks of their own: the one that was running, and the others."""
        tasks = self._tasks_of(chunk, 0)
        chunk.worker = None
        culprit: list[Task] = [task for task in tasks if isinstance(task, Item) and task.place == running]
        return culprit, [task for task in tasks if task not in culprit]

    def _take_back_chunks(self) -> None:
        """Make requests wait again whose chunk is with a worker and that have not begun."""
        for worker in self.scheduler.workers.values():
            page = worker.handle.page
            for order in worker.inflight.values():
                if order.tasks and isinstance(chunk := order.tasks[0], Chunk):
                    page.cut(order.serial)
                    self.take_from_chunk(chunk, page.item + 1 if page.running[0] == order.serial else 0)

    def end_parts(self, task: Task) -> None:
        """End the parts of a task. Parts that wait never begin; results of parts that run are thrown away."""
        self.divided.discard(task)
        parts, task.parts = task.parts, ()
        for part in parts:
            part.model.queue.forget(part)
            self._end(part)

    def tell_loaded(self, model: ModelState, error: BaseException | None = None) -> None:
        """Tell the callers that wait for this model that it is loaded, or why it cannot be."""
        self._to_settle += [(future, error is None, error) for future in model.awaiting_load]
        model.awaiting_load = []

    def break_model(self, model: ModelState, error: BaseException) -> None:
        """Fail all tasks of this model with this error, now and later."""
        model.broken = error
        if not model.queue.all() and not model.awaiting_load:  # otherwise their futures say it
            log.error("%s", error)
        self._fail_waiting(model, error)

    def give_up_building(self, model: ModelState, error: BaseException, now: float) -> None:
        """Fail all tasks of the model. If another worker holds it, these go on there, and one more replica is tried again later."""
        if any(not (holding.is_loading or holding.is_leaving) for holding in self.scheduler.holdings_of(model)):
            log.warning("another worker holds the model and goes on: %s", error)
            model.not_before = now + _NEXT_REPLICA_S
            self.tell_loaded(model, error)
        else:
            self.break_model(model, error)

    def break_all(self, why: str) -> None:
        error = no_worker(why)
        for model in self.scheduler.models.values():
            self.break_model(model, error)

    def give_up(self, why: str) -> None:
        """Fail all tasks; also those under way, because no thread will read their answers."""
        self.break_all(why)
        self.fail_running(no_worker(why))

    def fail_waiting(self) -> None:
        for model in self.scheduler.models.values():
            self._fail_waiting(model, pool_closed())

    def _fail_waiting(self, model: ModelState, error: BaseException) -> None:
        self.tell_loaded(model, error)
        for task in model.queue.all():
            model.queue.forget(task)
            self.fail(task, error)

    def fail_running(self, error: BaseException) -> None:
        for task in self._running():
            self.fail(task, error)

    def refuse(self, task: Task) -> NoReturn:
        """Raise the reason why this task is not taken. A chunk is sent again later, so it keeps its inputs."""
        model = task.model
        if not isinstance(task, Chunk):
            self._end(task)
        if self.is_closing:
            raise self.closed()
        if model.broken is not None:
            raise model.broken
        model.counted.rejected += 1
        raise pool_full(model.name, model.queue.waiting, "tasks")

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
            task.end()  # drops its worker, whose lanes would otherwise stay until the garbage collector runs

    def add_model(self, model: ModelState) -> None:
        """Add a model. One that replaces another takes over its counters."""
        model.counted = self.counters.add(model.name) if model.is_current else self.counters.of(model.name)
        _break_if_too_large(model, self.settings.budgets)
        self.scheduler.models[model.number] = model

    def remove_model(self, model: ModelState, successor: ModelState | None) -> None:
        """The model leaves the workers when its tasks are done, and is forgotten then. If it has a successor, waiting tasks go there."""
        model.is_current, model.successor = False, successor
        if successor is not None:
            successor.is_current = True
            for task in model.queue.all():
                model.queue.forget(task)
                hand_over(task)
                successor.queue.push(task)
        self.tell_loaded(model, None if successor is not None else removed(model.name))
        self._departing.append(model)
        self.scheduler.let_leave(model)

    def let_departed_leave(self) -> None:
        """Make removed models leave that were loaded again for tasks they had left."""
        for model in self._departing:
            if not model.queue.waiting:
                self.scheduler.let_leave(model)

    def forget_departed(self) -> list[ModelState]:
        """Forget removed models once none of their tasks waits or runs and no worker holds them; returns them."""
        gone = [model for model in self._departing if not model.queue.waiting and not self.scheduler.holdings_of(model)]
        for model in gone:
            self._departing.remove(model)
            del self.scheduler.models[model.number]
            model.broken = removed(model.name)  # for callers that still hold it
            if not any(other.name == model.name for other in self.scheduler.models.values()):
                self.counters.forget(model.name)
        return gone

    def _shown_model(self, model: ModelState) -> dict[str, Any]:
        workers = self.scheduler.workers.values()
        finding = model.broken.finding if model.broken is not None else model.unbatched
        return {
            "queued": model.queue.requests,
            "running": sum(_requests(order) for worker in workers for order in worker.inflight.values() if order.model.name == model.name),
            "replicas": sum(holding.model.name == model.name for worker in workers for holding in worker.holds.values()),
            "memory_bytes": model.nbytes if model.is_measured else None,
            "max_batch": model.max_batch,
            "batch_cost_s": model.cost.fit(),
            "state": "failed" if model.broken is not None else "ok",
            "finding": f"{finding.code} {finding.summary}" if finding is not None else None,
            **self.counters.of(model.name).to_dict(),
        }


def _shown_worker(worker: WorkerState) -> dict[str, Any]:
    serial, since_ns = worker.handle.page.running
    order = worker.inflight.get(serial)
    return {
        "number": worker.number,
        "pid": worker.handle.pid,
        "device": worker.device,
        "ready": worker.is_ready,
        "holds": [holding.model.name for holding in worker.holds.values()],
        "memory_bytes": worker.held_bytes,
        "inflight": sum(map(_requests, worker.inflight.values())),
        "running": order.model.name if order is not None else None,
        "running_s": (monotonic_ns() - since_ns) / 1e9 if order is not None else None,
    }


def _requests(order: Order) -> int:
    return sum(task.count for task in order.tasks)


def _break_if_too_large(model: ModelState, budgets: dict[str, int]) -> None:
    """Break a model whose declared size exceeds the budget of its device: it can never be loaded."""
    limits = [limit for device, limit in budgets.items() if model.device in (device, device.split(":")[0])]
    if limits and model.nbytes > max(limits):
        model.broken = too_large(model.name, model.nbytes, model.device, max(limits))


def hand_over(task: Task) -> None:
    """Give the task to the model that replaced its own."""
    while task.model.successor is not None:
        task.model = task.model.successor
    for part in task.parts:
        part.model = task.model
