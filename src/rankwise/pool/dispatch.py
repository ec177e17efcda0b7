"""Between the callers' threads and the workers: queues tasks, sends what the scheduler decides, settles futures with the answers.

One lock guards all state. Futures are settled after it is released, because their callbacks may submit again.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NoReturn

from rankwise.pool.answers import Answers
from rankwise.pool.arena import Arena
from rankwise.pool.chunks import Chunk, Item
from rankwise.pool.crew import Seat
from rankwise.pool.deadlines import Deadlines
from rankwise.pool.express import Express
from rankwise.pool.listen import Listener
from rankwise.pool.outbox import Outbox
from rankwise.pool.schedule import ModelState, Scheduler, WorkerState
from rankwise.pool.staff import Staff
from rankwise.pool.stats import Counters
from rankwise.pool.supervise import Supervisor
from rankwise.pool.tasks import Outcome, Task, TaskFuture, TaskQueue
from rankwise.pool.verdicts import deadline_exceeded, no_worker, pool_closed, pool_full, too_large

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


class Dispatcher:
    def __init__(self, models: list[ModelState], specs: dict[int, bytes], settings: Settings) -> None:
        self.lock = threading.Lock()
        self.settings = settings
        self.scheduler = Scheduler(models, settings.budgets)
        self.arena = Arena(settings.lane_bytes)
        self.counters = Counters([model.name for model in models])
        for model in models:
            model.counted = self.counters.of(model.name)
        self.act = Outbox(self, specs).act
        self.is_closing = False  # takes no more tasks
        self.is_closed = False
        self._settled: list[tuple[Outcome | Future[None], bool, Any]] = []
        self._deadlines = Deadlines()
        self._wholes: set[Task] = set()  # requests that run as parts
        self._all_done = threading.Condition(self.lock)
        self.answers = Answers(self)
        self.express = Express(self)
        self.listener = Listener(self)
        self.help = self.listener.help
        for model in models:
            limits = [limit for device, limit in settings.budgets.items() if model.device in (device, device.split(":")[0])]
            if limits and model.nbytes > max(limits):
                model.broken = too_large(model.name, model.nbytes, model.device, max(limits))
        self.staff = Staff(self, settings.seats)
        self.supervisor = Supervisor(self)
        self.staff.start()
        self.listener.start()

    # ---- for callers, from any thread

    def submit(self, task: Task) -> None:
        model, now = task.model, task.submitted
        with self.lock:
            queue: TaskQueue = model.queue
            if self.is_closing or model.broken is not None or queue.waiting - queue.extra >= self.settings.max_queue:
                self._refuse(task)
            if task.parts:
                self._wholes.add(task)
                for part in task.parts:
                    self.scheduler.add(part, now)
            else:
                self.scheduler.add(task, now)
            if task.deadline is not None:
                self._deadlines.add(task.deadline, task)
                self.listener.wake_by(task.deadline)
            elif now < model.held_until and model.queue.rows_like(task) < model.max_batch:
                return  # a batch that waits for more rows
            for worker in self.scheduler.workers.values():
                if len(worker.inflight) < 2 and worker.is_ready:  # those that are busy get more when they answer, many at once
                    self.act(self.scheduler.plan(now), now)
                    self.listener.wake_by(self.scheduler.wake_at)
                    break
        if self._settled:
            self.settle()

    def withdraw(self, task: Task) -> None:
        """Its future is about to be cancelled: if it has not begun, it never will, and its place is free."""
        with self.lock:
            if not task.is_over and not task.has_begun:
                task.model.queue.forget(task)
                self.counters.of(task.model.name).cancelled += 1
                self._over(task)

    def abandon(self, chunk: Chunk) -> None:
        """Nobody wants its results any more: what has not begun of it never will."""
        with self.lock:
            if chunk.is_over:
                return
            if chunk.is_queued:
                chunk.model.queue.forget(chunk)
                self.counters.of(chunk.model.name).cancelled += chunk.count
            elif chunk.worker is not None:
                for order in chunk.worker.inflight.values():
                    if chunk in order.tasks:
                        chunk.worker.edge.page.cut(order.serial)
            self._over(chunk)

    def forget(self, task: Task) -> bool:
        """A task that was never queued itself, because its parts were; False where it was over already."""
        with self.lock:
            was_open = not task.is_over
            self._over(task)
        return was_open

    def run_uncut(self, task: Task) -> None:
        """A request whose parts have no rows that could be joined: it runs once more, in one piece, as all of its model from now on."""
        now = time.monotonic()
        with self.lock:
            if task.is_over:
                return
            self._end_parts(task)
            self.answers.stop_batching(task.model, "what it returns for parts of a request does not make one output")
            if self.is_closed or task.model.broken is not None:
                self.fail(task, task.model.broken or pool_closed())
            else:
                task.alone = True
                self.scheduler.add_again([task])
                self.act(self.scheduler.plan(now), now)
        self.settle()

    def load(self, model: ModelState, future: Future[None]) -> None:
        """Settles the future when the model is loaded, or cannot be. One that could not be built before is tried again."""
        with self.lock:
            if self.is_closing:
                raise pool_closed()
            if model.broken is not None:
                model.broken, model.build_failures, model.not_before = None, 0, 0.0
            model.awaiting_load.append(future)
            self.tell_loaded(model)
            now = time.monotonic()
            self.act(self.scheduler.plan(now), now)
        self.settle()

    def unload(self, model: ModelState) -> None:
        with self.lock:
            self.scheduler.let_leave(model)
            self.act(self.scheduler.leaving_drops(), time.monotonic())

    def has_open_tasks(self) -> bool:
        """Of anybody: what is under way may make room."""
        with self.lock:
            return self._has_open_tasks()

    def input_bytes(self) -> int:
        """On the lane, for tasks that are not over."""
        with self.lock:
            waiting = [task for model in self.scheduler.models.values() for task in model.queue.all()]
            slots = {slot for task in (*waiting, *self._running(), *self._wholes) for slot in task.slots}
        return sum([slot.room for slot in slots])

    def close(self, cancel: bool, timeout: float | None) -> None:
        """No new tasks; wait for those that are there, or cancel the waiting ones; then end everything."""
        end = None if timeout is None else time.monotonic() + timeout
        with self.lock:
            self.is_closing = True
            if cancel:
                self._take_back_chunks()
                self._fail_waiting()
        self.settle()
        with self.lock:
            while self._has_open_tasks() and not self.is_closed and (end is None or time.monotonic() < end):
                self._all_done.wait(0.05)
            self.is_closed = True
            self._fail_waiting()
            self._fail_running(pool_closed())
        self.settle()
        self.listener.wake()
        self.listener.join()

    def forget_after_fork(self) -> None:
        """In a forked child: let go of what belongs to the parent, so that its end is seen by those who watch for it."""
        self.is_closed = self.is_closing = True
        self.arena.is_closed = True
        self.listener.close_own()
        self.staff.close_after_fork()

    # ---- for the listener

    def handle(self, worker: WorkerState, message: tuple[Any, ...] | None) -> None:
        """One packet of a worker; None: it has closed its socket."""
        now = time.monotonic()
        with self.lock:
            if message is None:
                self.staff.lost_touch(worker)
            elif message[0] == "one":
                _, serial, nanoseconds, ok, node, flags = message
                self.answers.take(worker, (serial, nanoseconds, ((ok, node),), flags), now)
            elif message[0] == "done":
                for answer in message[1]:
                    self.answers.take(worker, answer, now)
            elif message[0] == "segment":
                worker.edge.add_segment(message[1])
            elif message[0] == "unbatchable":
                self.answers.stop_batching(self.scheduler.models[message[1]], message[2])
            elif message[0] == "poisoned":
                self.answers.poisoned(worker, message, now)
            elif message[0] == "loaded":
                self.answers.loaded(worker, message, now)
            elif message[0] == "failed":
                self.answers.not_built(worker, message, now)
            elif message[0] == "ready":
                self.staff.ready(worker, message[1])
            self._go_on(now)
        self.settle()

    def go_on(self, now: float) -> None:
        """Somebody has time again."""
        with self.lock:
            self._go_on(now)
        self.settle()

    def tick(self, now: float) -> None:
        with self.lock:
            self.staff.go_on(now)
            if self.settings.idle_s is not None:
                self.act(self.scheduler.idle_drops(now, self.settings.idle_s), now)
            self.act(self.scheduler.leaving_drops(), now)
            self.act(self.scheduler.plan(now), now)
        self.supervisor.look(now)
        self.settle()

    def next_moment(self, latest: float) -> float:
        """When there is something to do at the latest."""
        with self.lock:
            moments = (latest, self._deadlines.next(), self.scheduler.wake_at)
        return min([moment for moment in moments if moment])

    def on_time(self, now: float) -> None:
        with self.lock:
            for task in self._deadlines.passed(now):
                self.expire(task)
            if self.scheduler.wake_at is not None and now >= self.scheduler.wake_at:
                self.act(self.scheduler.plan(now), now)
        self.settle()

    @property
    def is_busy(self) -> bool:
        return any(worker.inflight for worker in list(self.scheduler.workers.values()))

    def settle(self) -> None:
        """Set the futures' results; without the lock, because their callbacks are the user's."""
        while self._settled:
            with self.lock:
                settled, self._settled = self._settled, []
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

    def give_up(self, why: str) -> None:
        with self.lock:
            self.give_up_now(why)
        self.settle()

    def tear_down(self) -> None:
        with self.lock:
            self.is_closed = self.is_closing = True
        self.staff.close()
        self.scheduler.workers.clear()
        self.staff.workers.clear()
        self.arena.close()
        self.settle()

    # ---- the lock is held from here on

    def let_go(self, task: Task) -> None:
        for slot in task.slots:
            self.arena.drop(slot)
        task.slots = ()

    def fail(self, task: Task, error: BaseException) -> None:
        self.counters.of(task.model.name).failed += task.count
        self.conclude(task, False, error)

    def tell_loaded(self, model: ModelState) -> None:
        if model.awaiting_load and self.scheduler.is_loaded(model):
            self._settled += [(future, True, None) for future in model.awaiting_load]
            model.awaiting_load = []

    def break_model(self, model: ModelState, error: Exception) -> None:
        """From now on, and for those that wait already: this error."""
        model.broken = error
        waiting, wanted = model.queue.all(), model.awaiting_load
        self._settled += [(future, False, error) for future in wanted]
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

    def _refuse(self, task: Task) -> NoReturn:
        model: ModelState = task.model
        if not isinstance(task, Chunk):  # which is tried again
            self._over(task)
        if self.is_closing:
            raise pool_closed()
        if model.broken is not None:
            raise model.broken
        self.counters.of(model.name).rejected += 1
        raise pool_full(model.name, model.queue.waiting, "tasks")

    def begins(self, task: Task, now: float) -> bool:
        """A task that was cancelled, or whose deadline has passed, never starts."""
        if task.is_over:
            return False
        if task.deadline is not None and now >= task.deadline:
            self.expire(task)
            return False
        if not task.has_begun:
            task.has_begun = True
            outcome = task.outcome
            if outcome is not None and not outcome.begin():  # a part of a request that was cancelled
                self._over(task)
                return False
        return True

    def expire(self, task: Task) -> None:
        if task.is_over or task.deadline is None:
            return
        was_running = bool(task.parts) and task.has_begun
        if task.worker is None:
            task.model.queue.forget(task)
        else:
            order = task.worker.inflight.get(task.worker.edge.page.running[0])
            was_running = order is not None and task in order.tasks
        self.counters.of(task.model.name).expired += 1
        self.fail(task, deadline_exceeded(task.model.name, task.deadline - task.submitted, was_running))

    def _go_on(self, now: float) -> None:
        if self.scheduler.has_waiting:
            self.act(self.scheduler.plan(now), now)
        if self.is_closing:
            self._all_done.notify_all()

    def conclude(self, task: Task, ok: bool, value: Any) -> None:
        if ok:
            self.done(task, value)
            return
        if task.outcome is not None:
            self._settled.append((task.outcome, False, value))
        self._over(task)

    def done_chunk(self, chunk: Chunk) -> None:
        """All its requests have their answers."""
        self._end_parts(chunk)
        self.let_go(chunk)
        chunk.release()
        if not chunk.finish(None):
            self._settled.append((chunk, True, None))

    def take_from_chunk(self, chunk: Chunk, first: int) -> None:
        """Its requests from this place on wait again, each by itself."""
        self.scheduler.add_again(self._tasks_of(chunk, first))

    def dissolve(self, chunk: Chunk, running: int) -> tuple[list[Task], list[Task]]:
        """Its requests that have no answer become tasks of their own: the one that was running, and the others."""
        tasks = self._tasks_of(chunk, 0)
        chunk.worker = None
        culprit = [task for task in tasks if isinstance(task.part, Item) and task.part.place == running]
        return culprit, [task for task in tasks if task not in culprit]

    def _take_back_chunks(self) -> None:
        """What has not begun of those that are with a worker waits again."""
        for worker in self.scheduler.workers.values():
            page = worker.edge.page
            for order in worker.inflight.values():
                if order.tasks and isinstance(chunk := order.tasks[0], Chunk):
                    page.cut(order.serial)
                    self.take_from_chunk(chunk, page.item + 1 if page.running[0] == order.serial else 0)

    def _tasks_of(self, chunk: Chunk, first: int) -> list[Task]:
        tasks = [] if chunk.is_over else chunk.tasks_from(first)
        if tasks:
            self._wholes.add(chunk)
        return tasks

    def done(self, task: Task, value: Any) -> None:
        """Where nobody has looked at the future yet, there is nobody to tell: its result is all there is to set."""
        if type(task) is TaskFuture:
            if task.slots:
                self.let_go(task)
            if not task.finish(value):
                self._settled.append((task, True, value))
            return
        if task.part is not None:
            self._settled.append((task.part, True, value))
        self._over(task)

    def _over(self, task: Task) -> None:
        if not task.is_over:
            if task.parts:
                self._end_parts(task)
            self.let_go(task)
            task.end()  # it knows its worker, and so its lanes: they would wait for the garbage collector

    def _end_parts(self, task: Task) -> None:
        """Those that wait never begin; the results of those that run are thrown away."""
        self._wholes.discard(task)
        parts, task.parts = task.parts, ()
        for part in parts:
            part.model.queue.forget(part)
            self._over(part)

    def _fail_waiting(self) -> None:
        for model in self.scheduler.models.values():
            self._settled += [(future, False, pool_closed()) for future in model.awaiting_load]
            model.awaiting_load = []
            for task in model.queue.all():
                model.queue.forget(task)
                self.fail(task, pool_closed())

    def _fail_running(self, error: BaseException) -> None:
        for task in self._running():
            self.fail(task, error)

    def give_up_now(self, why: str) -> None:
        """Also what is under way, for nobody will read the answers."""
        self.break_all(why)
        self._fail_running(no_worker(why))

    def _running(self) -> list[Task]:
        orders = [order for worker in self.scheduler.workers.values() for order in worker.inflight.values()]
        return [task for order in orders for task in order.tasks if not task.is_over]

    def _has_open_tasks(self) -> bool:
        return self.scheduler.has_waiting or bool(self._wholes) or bool(self._running())
