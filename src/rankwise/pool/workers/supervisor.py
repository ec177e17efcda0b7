"""Starts workers, replaces dead ones, ends workers that hang or were stopped, and decides what becomes of their tasks."""

from __future__ import annotations

import itertools
import logging
import signal
import threading
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

from rankwise.files import text_if_readable
from rankwise.pool.errors import (
    Death,
    OomWatch,
    back_off_s,
    build_died,
    is_hopeless,
    is_quarantined,
    no_worker,
    quarantined,
    task_hung,
)
from rankwise.pool.memory.encoding import described
from rankwise.pool.memory.requests import Reader
from rankwise.pool.schedule.pool_state import PoolState
from rankwise.pool.schedule.state import ModelState, Order, Seat, WorkerState, derived, monotonic, monotonic_ns
from rankwise.pool.schedule.tasks import Chunk, Task
from rankwise.pool.transport.connection import SLOTS, WorkerHandle, stack_of, wait_at_most
from rankwise.pool.transport.listener import Events, Listener
from rankwise.pool.workers.fork_server import UNBORN_FROM, UNMADE_FROM, ForkServer, pause_s

log = logging.getLogger("rankwise.pool")
_MAX_EARLY_DEATHS = 3
_LATELY_S = 60.0
_WELL_AFTER_S = 10.0  # a fork server that has been ready for so long does not count as a failure
_PASSES = ("MemoryError", "Cannot allocate memory")  # errors that another attempt may not meet
_END_S = 5.0  # until a worker that was killed is gone
_LOOK_UP_S = 0.1  # how often a thread that waits for a packet looks whether the worker is still there


class Lifecycle:
    """Starts workers, removes dead ones, and decides whether their tasks run again or fail.

    All methods but `read_fork_server`, `remove_dead` and `close` are called with the pool's lock held."""

    def __init__(self, state: PoolState, listener: Listener, events: Events) -> None:
        self._state, self._scheduler, self._listener, self._events = state, state.scheduler, listener, events
        self._numbers = itertools.count(1)
        self._early_deaths = self._left_early = 0
        self.oom = OomWatch(monotonic())
        self._signalled: deque[tuple[float, WeakSet[Any]]] = deque(maxlen=16)  # the last deaths by a signal: when, and what the worker ran
        self.workers: dict[int, WorkerState] = {}
        self._vacant: list[tuple[float, Seat]] = [(0.0, seat) for seat in state.settings.plan.seats]  # and until when each stays empty
        self._has_made_one = self._has_had_one = False  # whether a worker was ever made, and ever got ready
        self._unmade = 0  # failed attempts to make a worker, in a row
        self.fork_server: ForkServer | None = None
        self._failures = 0  # failures of the fork server, in a row
        self._start_at = 0.0
        self._ready_since: float | None = None
        self._was_ever_ready = False

    def go_on(self, now: float) -> None:
        """Start what is due: the fork server, and a worker for each vacant seat."""
        if self._state.is_closed or (self.fork_server is None and not self._has_fork_server(now)):
            return
        self._forgive_failures(now)
        due = [seat for moment, seat in self._vacant if moment <= now]
        self._vacant = [(moment, seat) for moment, seat in self._vacant if moment > now]
        for seat in due:
            try:
                self._start_worker(seat)
                self._has_made_one = True
            except (OSError, MemoryError) as error:  # no more files, or no memory
                if not self._has_made_one:  # the first attempt: the caller that makes the pool gets the error
                    steps = ("ulimit -n says how many files a process may open, ulimit -v how much memory it may take", "or fewer workers")
                    raise no_worker(f"not one of {len(due)} could be made: {error}", steps) from error
                self._try_later(seat, now, pause_s(UNMADE_FROM + self._unmade), str(error))

    def _try_later(self, seat: Seat, now: float, pause: float, why: str) -> None:
        log.warning("a worker could not be made (%s); it is tried again in %g s", why, pause)
        self._vacant.append((now + pause, seat))
        self._unmade += 1

    def _has_fork_server(self, now: float) -> bool:
        if now < self._start_at:
            return False
        try:
            self.fork_server = ForkServer(self._state.settings.plan.seats[0].threads)
        except (OSError, MemoryError) as error:
            if not self._failures:  # the first attempt: the caller that makes the pool gets the error
                raise
            self._failures += 1
            self._start_at = now + pause_s(self._failures)
            log.warning("the process that workers are forked from could not be started (%s); it is tried again", error)
            return False
        self._listener.watch(self.fork_server.control.fileno(), self.read_fork_server)
        return True

    def _forgive_failures(self, now: float) -> None:
        if self._ready_since is not None and now - self._ready_since > _WELL_AFTER_S:
            self._failures = 0

    def read_fork_server(self) -> None:
        """Take one message of the fork server. Runs in the listener's thread, without the lock."""
        fork_server = self.fork_server
        if fork_server is None:
            return
        try:
            message = fork_server.receiver.receive(wait=False)
        except BlockingIOError:
            return
        if message is None:
            self._fork_server_died(fork_server)
        elif message[0] == "ready":
            fork_server.is_ready = self._was_ever_ready = True
            self._ready_since = monotonic()
        elif message[0] == "failed":
            fork_server.complaint = message[1]
        elif message[0] == "born" and message[1] in self.workers:
            self.workers[message[1]].handle.born(message[2])
            self._unmade = 0
        elif message[0] == "unborn" and message[1] in self.workers:
            self._was_not_born(self.workers[message[1]], message[2])
        elif message[0] == "ended":
            for worker in [worker for worker in self.workers.values() if worker.handle.pid == message[1]]:
                self.remove_dead(worker, message[2])

    def ready(self, worker: WorkerState, pid: int) -> None:
        worker.is_ready = True
        worker.handle.born(pid)  # the worker's own message may come before that of the fork server
        self._early_deaths, self._has_had_one = 0, True
        if worker.handle.is_orphan:
            self._watch_end(worker)

    def socket_closed(self, worker: WorkerState) -> None:
        """The worker has closed its socket: it gets nothing more, and the fork server will report its death. If the fork server is gone,
        the supervisor removes the worker."""
        worker.is_ready = False
        worker.handle.is_lost = True
        self._listener.disarm(worker.handle)

    def close(self) -> None:
        """End all workers. Runs in the listener's thread, without the lock, because a caller may still read an answer."""
        if self.fork_server is not None:
            self.fork_server.close()
        for worker in self.workers.values():
            if worker.handle.is_orphan:
                worker.handle.kill_and_wait(_END_S)
            worker.handle.is_gone = True
            with worker.handle.reading:
                worker.handle.close()

    def close_after_fork(self) -> None:
        if self.fork_server is not None:
            self.fork_server.control.close()
        for worker in self.workers.values():
            worker.handle.close()

    def _start_worker(self, seat: Seat) -> None:
        state, limit = self._state, self._state.settings.output_bytes
        handle = WorkerHandle(next(self._numbers), seat)
        wait_at_most(handle.sock, _LOOK_UP_S)
        handle.reader = Reader(handle.segments, handle.page.free, state.arena, limit, SLOTS)
        worker = WorkerState(handle.number, seat.device, handle=handle)
        assert self.fork_server is not None
        try:
            self.fork_server.ask_for(handle, limit, derived(state.settings.seed, "worker", handle.number))
        except OSError:  # the fork server has just died: the next one will be asked
            handle.given_away()
        self._scheduler.workers[worker.number] = self.workers[worker.number] = worker
        self._listener.add(worker)

    def _was_not_born(self, worker: WorkerState, why: str) -> None:
        worker.handle.is_gone = True
        with worker.handle.reading, self._state.lock:
            self._remove(worker, Death(None))
            self._try_later(worker.handle.seat, monotonic(), pause_s(UNBORN_FROM + self._unmade), why)

    def remove_dead(self, worker: WorkerState, exit_code: int | None) -> None:
        """Remove a worker that has ended, and replace it. Runs in the listener's thread, without the lock."""
        handle: WorkerHandle = worker.handle
        if handle.is_gone:  # its process and its socket both tell of its end, and only one other worker takes its seat
            return
        handle.is_gone = True
        with handle.reading:
            self._drain(worker)
            with self._state.lock:
                is_early = not (worker.is_ready or handle.has_answered or worker.holds)
                death = self._death(handle, exit_code)
                self._remove(worker, death)
                if handle.pid:  # otherwise the process was never started
                    self._state.counters.restarts += 1
                    log.warning("worker %d (pid %d) %s; it is replaced", worker.number, handle.pid, death.text)
                if not self._state.is_closed:
                    self._replace(handle.seat, death, is_early and bool(handle.pid))
        self._events.go_on(monotonic())

    def _replace(self, seat: Seat, death: Death, is_early: bool) -> None:
        """Start another worker: at once, or after a growing pause if this one never got ready. Give up after three early exits if no worker
        ever got ready; if one did, the trouble is with this worker's seat, or may pass."""
        self._early_deaths = self._early_deaths + 1 if is_early else 0
        self._left_early = self._left_early + 1 if is_early and death.exit_code is not None and death.exit_code >= 0 else 0
        if self._left_early >= _MAX_EARLY_DEATHS and not self._has_had_one:
            self._state.break_all(f"three workers in a row died before they were ready; the last one {death.text}")
            return
        now = monotonic()
        self._vacant.append((now + pause_s(self._early_deaths), seat))
        self.go_on(now)

    def _death(self, handle: WorkerHandle, exit_code: int | None) -> Death:
        if exit_code not in (None, -signal.SIGKILL) or handle.verdict is not None:
            return handle.death(exit_code)
        ran_out = self.oom.look(monotonic())
        return handle.death(exit_code, out_of_memory=bool(ran_out), is_guess=ran_out == "perhaps")

    def _drain(self, worker: WorkerState) -> None:
        while True:
            try:
                message = worker.handle.receiver.receive(wait=False)
            except BlockingIOError:
                return
            if message is None:
                return
            self._events.take_message(worker, message)

    def _remove(self, worker: WorkerState, death: Death) -> None:
        running, _ = worker.handle.page.running
        item = worker.handle.page.item
        orders = self._scheduler.lost(worker)
        self.workers.pop(worker.number, None)
        self._listener.remove(worker)
        self._judge(orders, running, item, death)
        worker.handle.close()

    def _judge(self, orders: list[Order], running: int, item: int, death: Death) -> None:
        """Run the tasks of a dead worker again, or fail them. `item` is the index of the request that ran, if it was one of a chunk."""
        again: list[Task] = []
        for order in orders:
            chunk = order.tasks[0] if order.tasks else None
            if isinstance(chunk, Chunk) and not chunk.is_over and (order.serial == running or chunk.is_cut):
                order.tasks, others = self._state.dissolve(chunk, item if order.serial == running else -1)
                again += others
        if death.exit_code is not None and death.exit_code < 0 and not death.is_proven:
            ran: list[Any] = [
                item for order in orders if order.serial == running for item in ([order.model] if order.is_load else order.tasks)
            ]
            self._signalled.append((monotonic(), WeakSet(ran)))
        for order in orders:
            was_running = order.serial == running
            if order.is_load:
                self._died_building(order.model, was_running, death)
            for task in order.tasks:
                if not task.is_over and (not was_running or not self._is_final_for(task, death)):
                    again.append(task)
        for task in again:
            self._state.counters.of(task.model.name).rerun += task.count
        self._scheduler.add_again(again)

    def _is_final_for(self, task: Task, death: Death) -> bool:
        """Whether this task fails because the worker that ran it died; otherwise it runs again."""
        name, state = task.model.name, self._state
        if death.hung_s is not None:
            state.fail(task, task_hung(name, described(task.node), task.model.limit_s or death.hung_s, death))
            return True
        task.deaths += 1
        task.proven_deaths += death.is_proven
        task.alone = True
        if not is_quarantined(task.proven_deaths, task.deaths, death, self._signalled_without(task)):
            return False
        state.counters.of(name).quarantined += 1
        state.fail(task, quarantined(name, described(task.node), task.deaths, death))
        return True

    def _signalled_without(self, task: Task | ModelState) -> int:
        """How many workers ended lately by a signal while they ran another task, or built another model."""
        since = monotonic() - _LATELY_S
        return sum(moment > since and task not in ran for moment, ran in self._signalled)

    def _died_building(self, model: ModelState, was_running: bool, death: Death) -> None:
        if not was_running or model.broken is not None:
            return
        model.build_failures += 1
        model.not_before = monotonic() + back_off_s(model.build_failures)
        if is_hopeless(model.build_failures, death, self._signalled_without(model)):
            self._state.give_up_building(model, build_died(model.name, model.build_failures, death), monotonic())

    def _fork_server_died(self, fork_server: ForkServer) -> None:
        """Go on without the old fork server: its workers go on too, but their exit codes are no longer reported."""
        state = self._state
        self._listener.forget(fork_server.control.fileno())
        with state.lock:
            self.fork_server = None
            complaint = self._why_not_again(fork_server, monotonic())
            for worker in self.workers.values():
                worker.handle.is_orphan = True
                if worker.handle.pid:
                    self._watch_end(worker)
            if state.is_closed:
                return
            if complaint:
                state.break_all(complaint)
        state.settle()

    def _watch_end(self, worker: WorkerState) -> None:
        """Watch the worker's process for its end, because the fork server that would report it is gone."""
        if worker.handle.pidfd < 0:  # it ended before it could be watched
            worker.handle.is_lost = True
        else:
            self._listener.watch(worker.handle.pidfd, partial(self.remove_dead, worker, None))

    def _why_not_again(self, fork_server: ForkServer, now: float) -> str:
        """An empty string if the fork server will be started again; otherwise why another attempt would fail in the same way."""
        code, complaint = fork_server.process.wait(), fork_server.complaint
        fork_server.close()
        self._forgive_failures(now)
        self._failures += 1
        self._ready_since = None
        pause = pause_s(self._failures)
        self._start_at = now + pause
        if not (self._was_ever_ready or any(words in complaint for words in _PASSES) or (code < 0 and not complaint)):
            return complaint or f"the process that imports torch ended with code {code}"
        again = f" in {pause:g} s" if pause else ""
        log.warning("the process that workers are forked from ended (%s); it is started again%s", code, again)
        return ""


STOPPED_AFTER_S = 0.8  # a debugger may stop a worker for a moment
_FORK_SERVER = 0  # stands for the fork server among the numbers of the workers
LOST_AFTER_S = 1.0
STUCK_AFTER_S = 300.0  # as a call of a model that says no `limit_s`
BLIND_AFTER_S = 2.0  # without a look: the whole job stood still (Slurm's suspend, docker pause), or this process did
RECALL_AFTER_S = 0.05  # a task that takes this long gives up what waits behind it to workers that are idle


class Supervisor:
    """Ends workers that hang or were stopped, and gives what waits behind a slow task to idle workers."""

    def __init__(self, state: PoolState, lifecycle: Lifecycle) -> None:
        self._state, self._scheduler, self._lifecycle = state, state.scheduler, lifecycle
        self._stopped_since: dict[int, float] = {}
        self._lost_since: dict[int, tuple[tuple[int, bool], float]] = {}
        self._looked, self._blind_until = monotonic(), 0.0

    def look(self, now: float) -> None:
        """Look at all workers. The listener's thread calls this several times a second."""
        lifecycle = self._lifecycle
        if now - self._looked > BLIND_AFTER_S:
            self._blind_until = now
        self._looked = now
        lifecycle.oom.note(now)
        if lifecycle.fork_server is not None and self._is_stopped(_FORK_SERVER, lifecycle.fork_server.process.pid, now):
            lifecycle.fork_server.process.kill()
        for worker in list(lifecycle.workers.values()):
            handle: WorkerHandle = worker.handle
            if handle.is_orphan and handle.is_lost:
                handle.kill()
                lifecycle.remove_dead(worker, None)
                continue
            if not handle.pid or handle.verdict is not None:
                continue
            self._recall(worker)
            hung_s = self._hung_s(worker)
            if hung_s is not None:
                handle.verdict = Death(None, hung_s=hung_s)
                look = partial(self._end_hung, handle, hung_s)
                try:
                    threading.Thread(target=look, name="rankwise-look", daemon=True).start()
                except RuntimeError:  # no more threads
                    look()
            elif self._is_stopped(worker.number, handle.pid, now):
                handle.verdict = Death(None, stopped=True, own_doing=handle.page.is_own_doing)
                log.warning("worker %d (pid %d) stands stopped; it is ended", worker.number, handle.pid)
                handle.kill()
            elif self._has_lost_orders(worker, now):
                log.warning("worker %d (pid %d) does not begin what it was given; it is replaced", worker.number, handle.pid)
                handle.kill()

    def _has_lost_orders(self, worker: WorkerState, now: float) -> bool:
        """Whether the worker has orders and begins none of them. If it has nothing to do and nothing is under way, a signal handler that
        raised (Ctrl-C), as it may between any two of our steps, kept something from being sent, or an answer from being taken in. Otherwise
        it is busy outside of all tasks, and if that lasts, it hangs there: in the `__del__` of a model that has left, say."""
        page, latest = worker.handle.page, next(reversed(list(worker.inflight)), 0)
        running, _ = page.running
        if not latest or not worker.is_ready or running in worker.inflight:
            self._lost_since.pop(worker.number, None)
            return False
        is_idle = not running and not worker.handle.is_anything_under_way()
        known = latest, is_idle
        before, since = self._lost_since.get(worker.number, (None, now))
        self._lost_since[worker.number] = known, since if before == known else now
        return before == known and now - max(since, self._blind_until) > (LOST_AFTER_S if is_idle else STUCK_AFTER_S)

    def _recall(self, worker: WorkerState) -> None:
        """Give orders that wait behind a slow task to an idle worker."""
        page = worker.handle.page
        if not worker.inflight or (monotonic_ns() - page.running[1]) / 1e9 < RECALL_AFTER_S:
            return
        with self._state.lock:
            serial, _ = page.running
            self._cut_chunk(worker, serial)
            others = [w for w in self._scheduler.workers.values() if w is not worker and w.is_ready and not w.inflight]
            behind = [order for order in worker.inflight.values() if order.serial > serial and not order.is_load]
            if serial not in worker.inflight or not others or not behind:
                return
            page.recalled = max(order.serial for order in behind)
            # The worker begins none of them any more, except perhaps the first, which it may have begun at this very moment. That one
            # then runs twice, and one of its answers is thrown away. Leaving it there would be wrong: if the worker has seen the note,
            # the task would never run.
            self._scheduler.recall(worker, behind, monotonic())

    def _cut_chunk(self, worker: WorkerState, serial: int) -> None:
        """Give the requests of a chunk that wait behind a slow one to other workers. As with orders, the next one may have just begun."""
        order = worker.inflight.get(serial)
        chunk = order.tasks[0] if order is not None and order.tasks else None
        if not isinstance(chunk, Chunk) or chunk.is_over or chunk.is_cut:
            return
        if any(other is not worker and other.is_ready and not other.inflight for other in self._scheduler.workers.values()):
            worker.handle.page.cut(serial)
            self._state.take_from_chunk(chunk, worker.handle.page.item + 1)

    def _hung_s(self, worker: WorkerState) -> float | None:
        serial, since_ns = worker.handle.page.running
        order = worker.inflight.get(serial)
        if order is None or order.model.limit_s is None:
            return None
        seconds = monotonic() - max(since_ns / 1e9, self._blind_until)
        return seconds if seconds > order.model.limit_s else None

    def _end_hung(self, handle: WorkerHandle, hung_s: float) -> None:
        stack = stack_of(handle)
        handle.verdict = Death(None, hung_s=hung_s, stack=stack)
        handle.kill()

    def _is_stopped(self, number: int, pid: int, now: float) -> bool:
        if not text_if_readable(Path(f"/proc/{pid}/stat")).rpartition(")")[2].startswith(" T"):
            self._stopped_since.pop(number, None)
            return False
        return now - self._stopped_since.setdefault(number, now) > STOPPED_AFTER_S
