"""Between the callers' threads and the workers: queues tasks, sends what the scheduler decides, takes what workers answer."""

from __future__ import annotations

import os
import time
from concurrent.futures import Future
from typing import Any, NoReturn

from rankwise.pool.errors import pool_closed, pool_full, removed, too_large
from rankwise.pool.schedule.pool_state import PoolState, Settings
from rankwise.pool.schedule.state import ModelState, Order, TaskQueue, WorkerState
from rankwise.pool.schedule.tasks import Task
from rankwise.pool.transport.answers import Answers
from rankwise.pool.transport.listener import Listener
from rankwise.pool.transport.sender import FastPath, Sender, placed_specs
from rankwise.pool.workers.supervisor import Lifecycle, Supervisor


class Dispatcher:
    def __init__(self, models: list[ModelState], specs: dict[int, bytes], settings: Settings) -> None:
        self.state = state = PoolState(models, settings)
        self._lock, self._scheduler, self.arena, self.counters = state.lock, state.scheduler, state.arena, state.counters
        self.withdraw, self.forget, self.abandon, self.has_open_tasks = state.withdraw, state.forget, state.abandon, state.has_open_tasks
        places = placed_specs(specs, state.arena)  # may refuse, so it comes before anything is opened
        self._listener = Listener(self)
        self.help, self.read_in = self._listener.help, self._listener.read_in
        self._sender = Sender(state, places, self._listener.expect)
        self._act = self._sender.act
        self._departing: list[ModelState] = []  # removed, with tasks left or still held by a worker
        self._answers = Answers(state, self._act)
        self.fast_path = FastPath(state, self, self._listener.expect)
        self.take_answer = self.fast_path.finish
        for model in models:
            _break_if_too_large(model, settings.budgets)
        self.lifecycle = Lifecycle(state, self._listener, self)
        self.read_fork_server, self.worker_ended = self.lifecycle.read_fork_server, self.lifecycle.remove_dead
        self._supervisor = Supervisor(state, self.lifecycle)
        self.lifecycle.go_on(time.monotonic())
        self._listener.start()

    @property
    def is_closed(self) -> bool:
        return self.state.is_closed

    @property
    def is_busy(self) -> bool:
        return any(worker.inflight for worker in list(self._scheduler.workers.values()))

    # ---- for callers, from any thread

    def submit(self, task: Task) -> None:
        state, scheduler, now = self.state, self._scheduler, task.submitted
        with self._lock:
            if task.model.successor is not None:
                hand_over(task)
            model: ModelState = task.model
            queue: TaskQueue = model.queue
            if state.is_closing or model.broken is not None or queue.waiting - queue.extra >= state.settings.max_queue:
                self._refuse(task)
            if task.parts:
                state.divided.add(task)
                for part in task.parts:
                    scheduler.add(part, now)
            else:
                scheduler.add(task, now)
            if task.deadline is not None:
                state.deadlines.add(task.deadline, task)
                self._listener.wake_by(task.deadline)
            elif now < model.held_until and model.queue.rows_like(task) < model.max_batch:
                return  # a batch that waits for more rows
            for worker in scheduler.workers.values():
                if len(worker.inflight) < 2 and worker.is_ready:  # busy workers get more when they answer, many at once
                    self._act(scheduler.plan(now), now)
                    self._listener.wake_by(scheduler.wake_at)
                    break
        state.settle()

    def run_uncut(self, task: Task) -> None:
        """Run a request once more in one piece, because its parts have no rows that could be joined; its model is not batched any more."""
        state, now = self.state, time.monotonic()
        with self._lock:
            if task.is_over:
                return
            state.end_parts(task)
            self._answers.stop_batching(task.model, "what it returns for parts of a request does not make one output")
            if state.is_closed or task.model.broken is not None:
                state.fail(task, task.model.broken or pool_closed())
            else:
                task.alone = True
                self._scheduler.add_again([task])
                self._act(self._scheduler.plan(now), now)
        state.settle()

    def load(self, model: ModelState, future: Future[None]) -> None:
        """Settles the future when the model is loaded, or cannot be. One that could not be built before is tried again."""
        with self._lock:
            if self.state.is_closing:
                raise pool_closed()
            if model.broken is not None:
                model.broken, model.build_failures, model.not_before = None, 0, 0.0
            model.awaiting_load.append(future)
            self.state.tell_loaded(model)
            now = time.monotonic()
            self._act(self._scheduler.plan(now), now)
        self.state.settle()

    def unload(self, model: ModelState) -> None:
        with self._lock:
            self._scheduler.let_leave(model)
            self._act(self._scheduler.leaving_drops(), time.monotonic())

    def add(self, model: ModelState, spec: bytes) -> None:
        """One more model, which a worker loads when it is asked for; where it is to take another's place, it has the other's counters."""
        with self._lock:
            if self.state.is_closing:
                raise pool_closed()
            self._sender.add(model.number, spec)
            model.counted = self.counters.add(model.name) if model.is_current else self.counters.of(model.name)
            _break_if_too_large(model, self.state.settings.budgets)
            self._scheduler.models[model.number] = model

    def remove(self, model: ModelState, successor: ModelState | None = None) -> None:
        """It leaves the workers when what was submitted is done, and is forgotten then. What waits goes to its successor."""
        with self._lock:
            model.is_current, model.successor = False, successor
            if successor is not None:
                successor.is_current = True
                for task in model.queue.all():
                    model.queue.forget(task)
                    hand_over(task)
                    successor.queue.push(task)
            self.state.tell_not_loaded(model, removed(model.name))
            self._departing.append(model)
            self._scheduler.let_leave(model)
            now = time.monotonic()
            self._act(self._scheduler.leaving_drops(), now)
            self._forget_departed()
            self._act(self._scheduler.plan(now), now)
        self.state.settle()

    def close(self, cancel: bool, timeout: float | None) -> None:
        """Take no new tasks; wait for the tasks that are there, or cancel the waiting ones; then end everything."""
        state, end = self.state, None if timeout is None else time.monotonic() + timeout
        with self._lock:
            state.is_closing = True
            if cancel:
                state.take_back_chunks()
                state.fail_waiting()
        state.settle()
        with self._lock:
            while state.is_any_open() and not state.is_closed and (end is None or time.monotonic() < end):
                state.all_done.wait(0.05)
            state.is_closed = True
            state.fail_waiting()
            state.fail_running(pool_closed())
        state.settle()
        self._listener.wake()
        self._listener.join()

    def forget_after_fork(self) -> None:
        """In a forked child: let go of what belongs to the parent, so that others see the parent's end."""
        self.state.is_closed = self.state.is_closing = True
        self.arena.is_closed = True
        self._listener.close_own()
        self.lifecycle.close_after_fork()

    def snapshot(self) -> dict[str, Any]:
        """The pool at one moment, as plain data: what `stats()`, the metrics and `rankwise top` show."""
        workers = self._scheduler.workers
        with self._lock:
            models = {model.name: self._shown_model(model) for model in self._scheduler.models.values() if model.is_current}
            shown = [_shown_worker(worker) for worker in workers.values()]
            restarts = self.counters.restarts
        lanes = {"inputs_used_bytes": self.arena.used_bytes(), "inputs_bytes": self.arena.total_bytes}
        plan = self.state.settings.plan
        return {"pid": os.getpid(), "plan": plan, "models": models, "workers": shown, "restarts": restarts, "lanes": lanes}

    # ---- for the listener's thread

    def take_message(self, worker: WorkerState, message: tuple[Any, ...] | None) -> None:
        """One packet of a worker; None: it has closed its socket."""
        now = time.monotonic()
        with self._lock:
            if message is None:
                self.lifecycle.lost_touch(worker)
            elif message[0] == "one":
                _, serial, nanoseconds, ok, node, flags = message
                self._answers.take(worker, (serial, nanoseconds, ((ok, node),), flags), now)
            elif message[0] == "done":
                for answer in message[1]:
                    self._answers.take(worker, answer, now)
            elif message[0] == "segment":
                worker.handle.add_segment(message[1])
            elif message[0] == "unbatchable":
                self._answers.stop_batching(self._scheduler.models[message[1]], message[2])
            elif message[0] == "poisoned":
                self._answers.poisoned(worker, message, now)
            elif message[0] == "loaded":
                self._answers.loaded(worker, message, now)
            elif message[0] == "failed":
                self._answers.not_built(worker, message, now)
            elif message[0] == "ready":
                self.lifecycle.ready(worker, message[1])
            self._plan_waiting(now)
        self.state.settle()

    def go_on(self, now: float) -> None:
        """A worker has time again."""
        with self._lock:
            self._plan_waiting(now)
        self.state.settle()

    def tick(self, now: float) -> None:
        idle_s = self.state.settings.idle_s
        with self._lock:
            self.lifecycle.go_on(now)
            if idle_s is not None:
                self._act(self._scheduler.idle_drops(now, idle_s), now)
            for model in self._departing:  # one that had tasks left was loaded anew for them
                if not model.queue.waiting:
                    self._scheduler.let_leave(model)
            self._act(self._scheduler.leaving_drops(), now)
            self._forget_departed()
            self._act(self._scheduler.plan(now), now)
        self._supervisor.look(now)
        self.state.settle()

    def next_moment(self, latest: float) -> float:
        """When `on_time` has to be called at the latest."""
        with self._lock:
            moments = (latest, self.state.deadlines.next(), self._scheduler.wake_at)
        return min([moment for moment in moments if moment])

    def on_time(self, now: float) -> None:
        with self._lock:
            for task in self.state.deadlines.passed(now):
                self.state.expire(task)
            if self._scheduler.wake_at is not None and now >= self._scheduler.wake_at:
                self._act(self._scheduler.plan(now), now)
        self.state.settle()

    def give_up(self, why: str) -> None:
        with self._lock:
            self.state.give_up(why)
        self.state.settle()

    def tear_down(self) -> None:
        with self._lock:
            self.state.is_closed = self.state.is_closing = True
        self.lifecycle.close()
        self._scheduler.workers.clear()
        self.lifecycle.workers.clear()
        self.arena.close()
        self.state.settle()

    # ---- the lock is held from here on

    def _forget_departed(self) -> None:
        """Those of which nothing waits, runs or is held any more."""
        for model in list(self._departing):
            if not model.queue.waiting and not any(model.number in worker.holds for worker in self._scheduler.workers.values()):
                self._departing.remove(model)
                del self._scheduler.models[model.number]
                self._sender.forget(model.number)
                model.broken = removed(model.name)  # for whoever still has it in hand
                if not any(other.name == model.name for other in self._scheduler.models.values()):
                    self.counters.forget(model.name)

    def _plan_waiting(self, now: float) -> None:
        if self._scheduler.has_waiting:
            self._act(self._scheduler.plan(now), now)
        if self.state.is_closing:
            self.state.all_done.notify_all()

    def _refuse(self, task: Task) -> NoReturn:
        model: ModelState = task.model
        self.state.refused(task)
        if self.state.is_closing:
            raise pool_closed()
        if model.broken is not None:
            raise model.broken
        self.counters.of(model.name).rejected += 1
        raise pool_full(model.name, model.queue.waiting, "tasks")

    def _shown_model(self, model: ModelState) -> dict[str, Any]:
        workers = self._scheduler.workers.values()
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
        "running_s": (time.monotonic_ns() - since_ns) / 1e9 if order is not None else None,
    }


def _requests(order: Order) -> int:
    return sum(task.count for task in order.tasks)


def _break_if_too_large(model: ModelState, budgets: dict[str, int]) -> None:
    """A model whose declared size passes the budget of its device cannot be had."""
    limits = [limit for device, limit in budgets.items() if model.device in (device, device.split(":")[0])]
    if limits and model.nbytes > max(limits):
        model.broken = too_large(model.name, model.nbytes, model.device, max(limits))


def hand_over(task: Task) -> None:
    """To the model that took the place of its own."""
    while task.model.successor is not None:
        task.model = task.model.successor
    for part in task.parts:
        part.model = task.model
