"""Hires workers, buries those that died, and decides what becomes of the tasks they had."""

from __future__ import annotations

import itertools
import logging
import signal
import time
from collections import deque
from typing import TYPE_CHECKING
from weakref import WeakSet

from rankwise.pool.crew import Crew, Edge, Seat
from rankwise.pool.describe import described
from rankwise.pool.faults import MAX_BUILDS, Death, back_off_s, is_quarantined
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
_LOOK_UP_S = 0.1  # how often whoever waits for a packet looks whether the worker is still there


class Staff:
    """All but `hear` are called with the dispatcher's lock held."""

    def __init__(self, dispatcher: Dispatcher, seats: list[Seat]) -> None:
        self._dispatcher, self._seats = dispatcher, seats
        self._numbers = itertools.count(1)
        self._early_deaths = 0
        self.oom = OomWatch(time.monotonic())
        self._signalled: deque[tuple[float, WeakSet[Task]]] = deque(maxlen=16)  # the last deaths by a signal: when, and under which tasks
        self.workers: dict[int, WorkerState] = {}
        self.crew: Crew

    def start(self) -> None:
        self.crew = Crew(self._seats[0].threads)
        self._dispatcher.listener.add_crew(self.crew.control.fileno())
        for seat in self._seats:
            self._hire(seat)

    def hear(self) -> None:
        """What the process that workers are forked from has to say; by the listener's thread."""
        try:
            message = self.crew.receiver.receive(wait=False)
        except BlockingIOError:
            return
        except OSError:
            message = None
        if message is None:
            self._crew_died()
        elif message[0] == "ready":
            self.crew.is_ready = True
        elif message[0] == "failed":
            self.crew.complaint = message[1]
        elif message[0] == "born" and message[1] in self.workers:
            self.workers[message[1]].edge.born(message[2])
        elif message[0] == "ended":
            for worker in [worker for worker in self.workers.values() if worker.edge.pid == message[1]]:
                self._bury(worker, message[2])

    def ready(self, worker: WorkerState, pid: int) -> None:
        worker.is_ready = True
        worker.edge.born(pid)  # it may be quicker to say so than the one that made it
        self._early_deaths = 0

    def lost_touch(self, worker: WorkerState) -> None:
        """Its socket is closed: it is about to be reported dead, and gets nothing more until then."""
        worker.is_ready = False
        self._dispatcher.listener.disarm(worker.edge)

    def close(self) -> None:
        """End everybody. By the listener's thread, without the lock: a caller may still be reading."""
        self.crew.close()
        for worker in self.workers.values():
            worker.edge.is_gone = True
            with worker.edge.reading:
                worker.edge.close()

    def close_after_fork(self) -> None:
        self.crew.control.close()
        for worker in self.workers.values():
            worker.edge.close()

    def _hire(self, seat: Seat) -> None:
        dispatcher, limit = self._dispatcher, self._dispatcher.settings.output_bytes
        edge = Edge(next(self._numbers), seat)
        wait_at_most(edge.sock, _LOOK_UP_S)
        edge.reader = Reader(edge, dispatcher.arena, limit)
        worker = WorkerState(edge.number, seat.device, edge=edge)
        try:
            self.crew.ask_for(edge, limit, derived(dispatcher.settings.seed, "worker", edge.number))
        except OSError:  # it has just died, which will be noticed; then all are hired again
            pass
        dispatcher.scheduler.workers[worker.number] = self.workers[worker.number] = worker
        dispatcher.listener.add(worker)

    def _bury(self, worker: WorkerState, exit_code: int | None) -> None:
        edge: Edge = worker.edge
        edge.is_gone = True
        with edge.reading:
            self._drain(worker)
            with self._dispatcher.lock:
                is_early = not (worker.is_ready or edge.has_answered or worker.holds)
                death = self._death(edge, exit_code)
                self._remove(worker, death)
                self._dispatcher.counters.restarts += 1
                if not self._dispatcher.is_closed:
                    log.warning("worker %d (pid %d) %s; it is replaced", worker.number, edge.pid, death.text)
                    self._early_deaths = self._early_deaths + 1 if is_early else 0
                    if self._early_deaths < _MAX_EARLY_DEATHS:
                        self._hire(edge.seat)
                    else:
                        self._dispatcher.break_all(f"three workers in a row died before they were ready; the last one {death.text}")
        self._dispatcher.tick(time.monotonic())

    def _death(self, edge: Edge, exit_code: int | None) -> Death:
        if exit_code != -signal.SIGKILL or edge.verdict is not None:
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
        orders = self._dispatcher.scheduler.lost(worker)
        self.workers.pop(worker.number, None)
        self._dispatcher.listener.remove(worker)
        self._judge(orders, running, death)
        worker.edge.close()

    def _judge(self, orders: list[Order], running: int, death: Death) -> None:
        again: list[Task] = []
        if death.exit_code is not None and death.exit_code < 0 and not death.is_proven:
            self._signalled.append((time.monotonic(), WeakSet(task for order in orders if order.serial == running for task in order.tasks)))
        for order in orders:
            was_running = order.serial == running and not death.stopped
            if order.is_load:
                self._died_building(order.model, was_running, death)
            for task in order.tasks:
                if not task.is_over and (not was_running or not self._is_its_end(task, death)):
                    again.append(task)
        for task in again:
            self._dispatcher.counters.of(task.model.name).rerun += 1
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
        if death.hung_s is not None or model.build_failures >= MAX_BUILDS:
            self._dispatcher.break_model(model, build_died(model.name, model.build_failures, death))

    def _crew_died(self) -> None:
        """The process the workers come from is gone, and they with it."""
        dispatcher, was_ready = self._dispatcher, self.crew.is_ready
        dispatcher.listener.remove_crew()
        code = self.crew.process.wait()
        for worker in list(self.workers.values()):
            worker.edge.is_gone = True
            with worker.edge.reading:
                self._drain(worker)
                with dispatcher.lock:
                    self._remove(worker, Death(None, stopped=True))
        with dispatcher.lock:
            self.crew.close()
            if dispatcher.is_closed:
                return
            if was_ready:
                log.warning("the process that workers are forked from ended (%s); it is started again", code)
                dispatcher.counters.restarts += len(self._seats)
                self.start()
            else:
                dispatcher.break_all(self.crew.complaint or f"the process that imports torch ended with code {code}")
        dispatcher.settle()
