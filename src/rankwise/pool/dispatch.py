"""Between the callers' threads and the workers: queues tasks, sends what the scheduler decides, settles futures with the answers.

One lock guards all state. Futures are settled after it is released, because their callbacks may submit again.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import logging
import threading
import time
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from rankwise.errors import UsageError
from rankwise.pool.answers import Answers
from rankwise.pool.arena import Arena
from rankwise.pool.crew import Edge, Seat
from rankwise.pool.express import Express
from rankwise.pool.listen import Listener
from rankwise.pool.packets import LaneFull, parts_of
from rankwise.pool.schedule import Action, Drop, Load, ModelState, Order, Run, Scheduler, WorkerState
from rankwise.pool.staff import Staff
from rankwise.pool.stats import Counters
from rankwise.pool.supervise import Supervisor
from rankwise.pool.tasks import Outcome, Task, TaskFuture
from rankwise.pool.verdicts import deadline_exceeded, no_worker, pool_closed, pool_full, too_large
from rankwise.pool.wire import INLINE_BYTES, send
from rankwise.sizes import bytes_text

log = logging.getLogger("rankwise.pool")
# Quick tasks share an answer, but nobody waits long for it; of a stream, a worker answers while it still has half of what it was given.
PROMPT_NS, LAZY_NS = 200_000, 15_000_000


@dataclass(frozen=True)
class Settings:
    max_queue: int
    lane_bytes: int
    output_bytes: int
    idle_s: float | None
    seats: list[Seat]
    budgets: dict[str, int]
    plan: str = ""  # why there are so many workers


class Dispatcher:
    def __init__(self, models: list[ModelState], specs: dict[int, bytes], settings: Settings) -> None:
        self.lock = threading.Lock()
        self.settings = settings
        self.scheduler = Scheduler(models, settings.budgets)
        self.arena = Arena(settings.lane_bytes)
        self.counters = Counters([model.name for model in models])
        for model in models:
            model.counted = self.counters.of(model.name)
        self.is_closing = False  # takes no more tasks
        self.is_closed = False
        self._specs = {number: self._place(spec) for number, spec in specs.items()}
        self._settled: list[tuple[Outcome, bool, Any]] = []
        self._deadlines: list[tuple[float, int, Task]] = []
        self._ticket = itertools.count()
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
            if self.is_closing or model.broken is not None or model.queue.waiting >= self.settings.max_queue:
                self._refuse(task)
            self.scheduler.add(task, now)
            if task.deadline is not None:
                heapq.heappush(self._deadlines, (task.deadline, next(self._ticket), task))
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

    def forget(self, task: Task) -> None:
        """A task that was never queued itself, because its parts were."""
        with self.lock:
            self._over(task)

    def close(self, cancel: bool, timeout: float | None) -> None:
        """No new tasks; wait for those that are there, or cancel the waiting ones; then end everything."""
        end = None if timeout is None else time.monotonic() + timeout
        with self.lock:
            self.is_closing = True
            if cancel:
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
        self.listener.close_after_fork()
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
            if self.settings.idle_s is not None:
                self.act(self.scheduler.idle_drops(now, self.settings.idle_s), now)
            self.act(self.scheduler.plan(now), now)
        self.supervisor.look(now)
        self.settle()

    def next_moment(self, latest: float) -> float:
        """When there is something to do at the latest."""
        with self.lock:
            moments = [latest, self._deadlines[0][0] if self._deadlines else latest, self.scheduler.wake_at or latest]
        return min(moments)

    def on_time(self, now: float) -> None:
        with self.lock:
            while self._deadlines and self._deadlines[0][0] <= now:
                self.expire(heapq.heappop(self._deadlines)[2])
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
                    if ok and type(future) is TaskFuture:
                        future.announce()
                    elif ok:
                        future.set_result(value)
                    elif future.running() or future.set_running_or_notify_cancel():
                        future.set_exception(value)
                except Exception:
                    log.exception("a future could not be settled")

    def give_up(self, why: str) -> None:
        with self.lock:
            self._give_up(why)
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
        self.counters.of(task.model.name).failed += 1
        self.conclude(task, False, error)

    def break_model(self, model: ModelState, error: Exception) -> None:
        """From now on, and for those that wait already: this error."""
        model.broken = error
        log.error("%s", error)
        for task in model.queue.all():
            model.queue.forget(task)
            self.fail(task, error)

    def break_all(self, why: str) -> None:
        error = no_worker(why)
        for model in self.scheduler.models.values():
            self.break_model(model, error)

    def _refuse(self, task: Task) -> NoReturn:
        model: ModelState = task.model
        self._over(task)
        if self.is_closing:
            raise pool_closed()
        if model.broken is not None:
            raise model.broken
        self.counters.of(model.name).rejected += 1
        raise pool_full(model.name, model.queue.waiting, "tasks")

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
            order.tasks = [task for task in order.tasks if self._begins(task, now)]
            try:
                if order.tasks:
                    items.append((order.serial, order.model.number, parts_of(order, self.arena)))
                    continue
            except LaneFull:
                self.scheduler.add_again(order.tasks)
            del worker.inflight[order.serial]
            self.scheduler.take_back(worker, order, now)
        is_lazy = all(task.is_lazy for order in orders for task in order.tasks)
        patience_ns = max(PROMPT_NS, min(LAZY_NS, int(worker.ahead_s * 5e8))) if is_lazy else PROMPT_NS
        if items and not self._send(worker, ("run", items, patience_ns)):
            for order in reversed([order for order in orders if order.serial in worker.inflight]):
                del worker.inflight[order.serial]
                self.scheduler.take_back(worker, order, now)
                self.scheduler.add_again(order.tasks)

    def _begins(self, task: Task, now: float) -> bool:
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
        was_running = False
        if task.worker is None:
            task.model.queue.forget(task)
        else:
            order = task.worker.inflight.get(task.worker.edge.page.running[0])
            was_running = order is not None and task in order.tasks
        self.counters.of(task.model.name).expired += 1
        self.fail(task, deadline_exceeded(task.model.name, task.deadline - task.submitted, was_running))

    def _send_load(self, worker: WorkerState, model: ModelState) -> None:
        serial = next(serial for serial, order in worker.inflight.items() if order.is_load and order.model is model)
        self._send(worker, ("load", serial, model.number, self._specs[model.number]), must=True)

    def _place(self, spec: bytes) -> Any:
        """Where workers find it: in the message, or on the lane once for all of them, for as long as the pool lives."""
        if len(spec) <= INLINE_BYTES:
            return spec
        slot = self.arena.write(np.frombuffer(spec, np.uint8))
        if slot is None:
            raise UsageError(
                f"a model's build takes {bytes_text(len(spec))} as it is sent to the workers, more than there is room for on the lane",
                why="what the callable carries along is part of it",
                next=("load weights inside the build, or give them as weights=…", "a larger lane_bytes="),
            )
        return slot.segment, slot.offset, len(spec)

    def _send_drop(self, action: Drop) -> None:
        self.counters.of(action.model.name).evictions += 1
        log.info("model %r leaves worker %d", action.model.name, action.worker.number)
        self._send(action.worker, ("drop", action.model.number), must=True)

    def _send(self, worker: WorkerState, message: tuple[Any, ...], must: bool = False) -> bool:
        """False where the worker's socket is full. A worker that is gone takes everything: its end gives it all back."""
        edge: Edge = worker.edge
        self.listener.expect(edge)
        try:
            while edge.known_segments < len(self.arena.segments):
                segment = self.arena.segments[edge.known_segments]
                if not send(edge.sock, ("segment", segment.size), (segment.fd,), wait=must):
                    return False
                edge.known_segments += 1
            is_sent = send(edge.sock, message, wait=must)
            edge.page.nudge()
            return is_sent
        except OSError as error:
            if error.errno == errno.EMSGSIZE:  # nobody will answer, so somebody has to say so
                self._give_up("a packet was larger than a socket takes, which is a fault of rankwise")
            return True

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
            self.let_go(task)
            task.end()  # it knows its worker, and so its lanes: they would wait for the garbage collector

    def _fail_waiting(self) -> None:
        for model in self.scheduler.models.values():
            for task in model.queue.all():
                model.queue.forget(task)
                self.fail(task, pool_closed())

    def _fail_running(self, error: BaseException) -> None:
        for task in self._running():
            self.fail(task, error)

    def _give_up(self, why: str) -> None:
        """Also what is under way, for nobody will read the answers."""
        self.break_all(why)
        self._fail_running(no_worker(why))

    def _running(self) -> list[Task]:
        orders = [order for worker in self.scheduler.workers.values() for order in worker.inflight.values()]
        return [task for order in orders for task in order.tasks if not task.is_over]

    def _has_open_tasks(self) -> bool:
        return self.scheduler.has_waiting or bool(self._running())
