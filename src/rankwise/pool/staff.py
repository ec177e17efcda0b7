"""Hires workers, buries those that died, and decides what becomes of the tasks they had."""

from __future__ import annotations

import itertools
import logging
import signal
import time
from collections import deque
from typing import TYPE_CHECKING
from weakref import WeakSet

from rankwise.pool.chunks import Chunk
from rankwise.pool.crew import Crew, Edge, Seat
from rankwise.pool.describe import described
from rankwise.pool.faults import MAX_BUILDS, MAX_KILLS, Death, back_off_s, is_quarantined
from rankwise.pool.hiring import Hiring, pause_s
from rankwise.pool.oom import OomWatch
from rankwise.pool.results import Reader
from rankwise.pool.schedule import ModelState, Order, WorkerState
from rankwise.pool.seeds import derived
from rankwise.pool.tasks import Task
from rankwise.pool.verdicts import build_died, quarantined, task_hung
from rankwise.pool.wire import wait_at_most

if TYPE_CHECKING:
    from rankwise.pool.dispatch import Dispatcher

log = logging.getLogger("rankwise.pool")
_MAX_EARLY_DEATHS = 3
_LATELY_S = 60.0
_END_S = 5.0  # until a worker that was killed is gone
_LOOK_UP_S = 0.1  # how often whoever waits for a packet looks whether the worker is still there


class Staff:
    """All but `hear`, `bury` and `close` are called with the dispatcher's lock held."""

    def __init__(self, dispatcher: Dispatcher, seats: list[Seat]) -> None:
        self._dispatcher = dispatcher
        self._numbers = itertools.count(1)
        self._hiring = Hiring(seats, self._on_crew, self._hire)
        self._early_deaths = self._left_early = 0
        self.oom = OomWatch(time.monotonic())
        self._signalled: deque[tuple[float, WeakSet[Task]]] = deque(maxlen=16)  # the last deaths by a signal: when, and under which tasks
        self.workers: dict[int, WorkerState] = {}

    def start(self) -> None:
        self.go_on(time.monotonic())

    def go_on(self, now: float) -> None:
        if not self._dispatcher.is_closed:
            self._hiring.go_on(now)

    @property
    def crew(self) -> Crew | None:
        return self._hiring.crew

    def hear(self) -> None:
        """What the process that workers are forked from has to say; by the listener's thread, without the lock."""
        crew = self.crew
        if crew is None:
            return
        try:
            message = crew.receiver.receive(wait=False)
        except BlockingIOError:
            return
        except OSError:
            message = None
        if message is None:
            self._crew_died()
        elif message[0] == "ready":
            self._hiring.ready(time.monotonic())
        elif message[0] == "failed":
            crew.complaint = message[1]
        elif message[0] == "born" and message[1] in self.workers:
            self.workers[message[1]].edge.born(message[2])
        elif message[0] == "ended":
            for worker in [worker for worker in self.workers.values() if worker.edge.pid == message[1]]:
                self.bury(worker, message[2])

    def ready(self, worker: WorkerState, pid: int) -> None:
        worker.is_ready = True
        worker.edge.born(pid)  # it may be quicker to say so than the one that made it
        self._early_deaths = 0
        if worker.edge.is_orphan:
            self._dispatcher.listener.add_end(worker)

    def lost_touch(self, worker: WorkerState) -> None:
        """Its socket is closed: it is about to be reported dead, and gets nothing more until then. Who would report an orphan's end is
        gone; the supervisor looks after that."""
        worker.is_ready = False
        worker.edge.is_lost = True
        self._dispatcher.listener.disarm(worker.edge)

    def close(self) -> None:
        """End everybody. By the listener's thread, without the lock: a caller may still be reading."""
        self._hiring.close()
        for worker in self.workers.values():
            if worker.edge.is_orphan:
                worker.edge.kill()
                worker.edge.await_end(_END_S)
            worker.edge.is_gone = True
            with worker.edge.reading:
                worker.edge.close()

    def close_after_fork(self) -> None:
        self._hiring.close_after_fork()
        for worker in self.workers.values():
            worker.edge.close()

    def _on_crew(self, crew: Crew) -> None:
        self._dispatcher.listener.add_crew(crew.control.fileno())

    def _hire(self, seat: Seat) -> None:
        dispatcher, limit = self._dispatcher, self._dispatcher.settings.output_bytes
        edge = Edge(next(self._numbers), seat)
        wait_at_most(edge.sock, _LOOK_UP_S)
        edge.reader = Reader(edge, dispatcher.arena, limit)
        worker = WorkerState(edge.number, seat.device, edge=edge)
        assert self.crew is not None
        try:
            self.crew.ask_for(edge, limit, derived(dispatcher.settings.seed, "worker", edge.number))
        except OSError:  # it has just died, which will be noticed; then there is somebody else to ask
            edge.given_away()
        dispatcher.scheduler.workers[worker.number] = self.workers[worker.number] = worker
        dispatcher.listener.add(worker)

    def bury(self, worker: WorkerState, exit_code: int | None) -> None:
        """By the listener's thread, without the lock."""
        edge: Edge = worker.edge
        edge.is_gone = True
        with edge.reading:
            self._drain(worker)
            with self._dispatcher.lock:
                is_early = not (worker.is_ready or edge.has_answered or worker.holds)
                death = self._death(edge, exit_code)
                self._remove(worker, death)
                if edge.pid:  # otherwise it never was
                    self._dispatcher.counters.restarts += 1
                    log.warning("worker %d (pid %d) %s; it is replaced", worker.number, edge.pid, death.text)
                if not self._dispatcher.is_closed:
                    self._replace(edge.seat, death, is_early and bool(edge.pid))
        self._dispatcher.tick(time.monotonic())

    def _replace(self, seat: Seat, death: Death, is_early: bool) -> None:
        """At once; one that did not even get ready, after a pause. Where it leaves by itself again and again, there is no use in it."""
        self._early_deaths = self._early_deaths + 1 if is_early else 0
        self._left_early = self._left_early + 1 if is_early and death.exit_code is not None and death.exit_code >= 0 else 0
        if self._left_early >= _MAX_EARLY_DEATHS:
            self._dispatcher.break_all(f"three workers in a row died before they were ready; the last one {death.text}")
            return
        now = time.monotonic()
        self._hiring.vacate(seat, now + pause_s(self._early_deaths))
        self._hiring.go_on(now)

    def _death(self, edge: Edge, exit_code: int | None) -> Death:
        if exit_code not in (None, -signal.SIGKILL) or edge.verdict is not None:
            return edge.death(exit_code)
        ran_out = self.oom.look(time.monotonic())
        return edge.death(exit_code, out_of_memory=bool(ran_out), is_guess=ran_out == "perhaps")

    def _drain(self, worker: WorkerState) -> None:
        """What it said before it died still counts."""
        while True:
            try:
                message = worker.edge.receiver.receive(wait=False)
            except OSError:
                return
            if message is None:
                return
            self._dispatcher.handle(worker, message)

    def _remove(self, worker: WorkerState, death: Death) -> None:
        running, _ = worker.edge.page.running
        item = worker.edge.page.item
        orders = self._dispatcher.scheduler.lost(worker)
        self.workers.pop(worker.number, None)
        self._dispatcher.listener.remove(worker)
        self._judge(orders, running, item, death)
        worker.edge.close()

    def _judge(self, orders: list[Order], running: int, item: int, death: Death) -> None:
        """`item` is the place of the request that was running, of a chunk."""
        again: list[Task] = []
        for order in orders:
            chunk = order.tasks[0] if order.tasks else None
            if isinstance(chunk, Chunk) and not chunk.is_over and (order.serial == running or chunk.is_cut):
                order.tasks, others = self._dispatcher.dissolve(chunk, item if order.serial == running else -1)
                again += others
        if death.exit_code is not None and death.exit_code < 0 and not death.is_proven:
            self._signalled.append((time.monotonic(), WeakSet(task for order in orders if order.serial == running for task in order.tasks)))
        for order in orders:
            was_running = order.serial == running
            if order.is_load:
                self._died_building(order.model, was_running, death)
            for task in order.tasks:
                if not task.is_over and (not was_running or not self._is_its_end(task, death)):
                    again.append(task)
        for task in again:
            self._dispatcher.counters.of(task.model.name).rerun += task.count
        self._dispatcher.scheduler.add_again(again)

    def _is_its_end(self, task: Task, death: Death) -> bool:
        """The worker died while it ran this task: whether that is the task's end as well."""
        name, dispatcher = task.model.name, self._dispatcher
        if death.hung_s is not None:
            dispatcher.fail(task, task_hung(name, described(task), task.model.limit_s or death.hung_s, death))
            return True
        task.hits += 1
        task.strikes += death.is_proven
        task.alone = True
        since = time.monotonic() - _LATELY_S
        others = sum(moment > since and task not in tasks for moment, tasks in self._signalled)
        if not is_quarantined(task.strikes, task.hits, death, others):
            return False
        dispatcher.counters.of(name).quarantined += 1
        dispatcher.fail(task, quarantined(name, described(task), task.hits, death))
        return True

    def _died_building(self, model: ModelState, was_running: bool, death: Death) -> None:
        if not was_running or model.broken is not None:
            return
        model.build_failures += 1
        model.not_before = time.monotonic() + back_off_s(model.build_failures)
        if death.hung_s is not None or model.build_failures >= (MAX_BUILDS if death.is_proven or not death.is_kill else MAX_KILLS):
            self._dispatcher.break_model(model, build_died(model.name, model.build_failures, death))

    def _crew_died(self) -> None:
        """Those that were forked from it are well, and go on; only nobody tells any more how they end."""
        dispatcher = self._dispatcher
        dispatcher.listener.remove_crew()
        with dispatcher.lock:
            complaint = self._hiring.crew_died(time.monotonic())
            for worker in self.workers.values():
                worker.edge.is_orphan = True
                if worker.edge.pid:
                    dispatcher.listener.add_end(worker)
            if dispatcher.is_closed:
                return
            if complaint:
                dispatcher.break_all(complaint)
        dispatcher.settle()
