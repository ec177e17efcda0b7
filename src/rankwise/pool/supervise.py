"""Looks after workers that do not answer: hung past a model's limit, or stopped by somebody. They are ended, and so replaced."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from rankwise.pool.chunks import Chunk
from rankwise.pool.crew import Edge
from rankwise.pool.faults import Death
from rankwise.pool.schedule import WorkerState
from rankwise.pool.stack import stack_of

if TYPE_CHECKING:
    from rankwise.pool.dispatch import Dispatcher

log = logging.getLogger("rankwise.pool")
STOPPED_AFTER_S = 0.8  # a moment is allowed: somebody may only be looking
_CREW = 0  # stands for the process that workers are forked from, among their numbers
RECALL_AFTER_S = 0.05  # a task that takes this long gives up what waits behind it to workers that are idle


class Supervisor:
    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._stopped_since: dict[int, float] = {}

    def look(self, now: float) -> None:
        """By the listener's thread, some times a second."""
        staff = self._dispatcher.staff
        staff.oom.note(now)
        if staff.crew is not None and self._is_stopped(_CREW, staff.crew.process.pid, now):
            staff.crew.process.kill()
        for worker in list(staff.workers.values()):
            edge: Edge = worker.edge
            if edge.is_orphan and edge.is_lost:
                edge.kill()
                staff.bury(worker, None)
                continue
            if not edge.pid or edge.verdict is not None:
                continue
            self._recall(worker)
            hung_s = self._hung_s(worker)
            if hung_s is not None:
                edge.verdict = Death(None, hung_s=hung_s)
                threading.Thread(target=self._end_hung, args=(edge, hung_s), name="rankwise-look", daemon=True).start()
            elif self._is_stopped(worker.number, edge.pid, now):
                edge.verdict = Death(None, stopped=True, own_doing=edge.page.is_own_doing)
                log.warning("worker %d (pid %d) stands stopped; it is ended", worker.number, edge.pid)
                edge.kill()

    def _recall(self, worker: WorkerState) -> None:
        """What waits behind a slow task goes to somebody who has time."""
        dispatcher, page = self._dispatcher, worker.edge.page
        if not worker.inflight or (time.monotonic_ns() - page.running[1]) / 1e9 < RECALL_AFTER_S:
            return
        with dispatcher.lock:
            serial, _ = page.running
            self._cut_chunk(worker, serial)
            others = [w for w in dispatcher.scheduler.workers.values() if w is not worker and w.is_ready and not w.inflight]
            behind = [order for order in worker.inflight.values() if order.serial > serial and not order.is_load]
            if serial not in worker.inflight or not others or not behind:
                return
            page.recall(max(order.serial for order in behind))
            # It begins none of them any more. The first it may have begun this very moment: then that runs twice, and the answer that
            # nobody waits for is thrown away. To leave it there would be wrong: whether it has begun, or seen the note, cannot be told.
            dispatcher.scheduler.recall(worker, behind, time.monotonic())

    def _cut_chunk(self, worker: WorkerState, serial: int) -> None:
        """The requests of a chunk that stand behind a slow one. As with orders, the next may have begun this very moment."""
        dispatcher, order = self._dispatcher, worker.inflight.get(serial)
        chunk = order.tasks[0] if order is not None and order.tasks else None
        if not isinstance(chunk, Chunk) or chunk.is_over or chunk.is_cut:
            return
        if any(other is not worker and other.is_ready and not other.inflight for other in dispatcher.scheduler.workers.values()):
            worker.edge.page.cut(serial)
            dispatcher.take_from_chunk(chunk, worker.edge.page.item + 1)

    def _hung_s(self, worker: WorkerState) -> float | None:
        serial, since_ns = worker.edge.page.running
        order = worker.inflight.get(serial)
        if order is None or order.model.limit_s is None:
            return None
        seconds = (time.monotonic_ns() - since_ns) / 1e9
        return seconds if seconds > order.model.limit_s else None

    def _end_hung(self, edge: Edge, hung_s: float) -> None:
        stack = stack_of(edge)
        edge.verdict = Death(None, hung_s=hung_s, stack=stack)
        edge.kill()

    def _is_stopped(self, number: int, pid: int, now: float) -> bool:
        if _state(pid) != "T":
            self._stopped_since.pop(number, None)
            return False
        return now - self._stopped_since.setdefault(number, now) > STOPPED_AFTER_S


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rsplit(b")", 1)[1].split()[0].decode()
    except (OSError, IndexError):
        return ""
