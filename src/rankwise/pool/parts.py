"""A request with more rows than a batch may have: it runs as several tasks, whose results are joined, or else it runs uncut."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from rankwise.pool.inlet import cut, join
from rankwise.pool.nested import Uneven, has_rows
from rankwise.pool.tasks import Task, TaskFuture

if TYPE_CHECKING:
    from rankwise.pool.dispatch import Dispatcher


def cut_up(task: TaskFuture, dispatcher: Dispatcher) -> None:
    """Into tasks of as many rows as run together, each of which knows where its result belongs."""
    size = task.model.max_batch
    starts = range(0, task.rows, size)
    whole = Whole(task, len(starts), dispatcher)
    parts = []
    for i, start in enumerate(starts):
        rows = min(size, task.rows - start)
        for slot in task.slots:
            dispatcher.arena.hold(slot)
        part = Task(task.model, (cut(task.node, start, start + rows), task.size // len(starts), task.slots, task.to_tensor), task.submitted)
        part.part = Part(whole, i, rows)
        part.rows, part.key = rows, task.key
        part.deadline, part.priority = task.deadline, task.priority
        part.is_extra = start + rows < task.rows
        parts.append(part)
    task.parts = parts


class Whole:
    """Collects the parts of one request; the first failure is the request's."""

    def __init__(self, future: TaskFuture, count: int, dispatcher: Dispatcher) -> None:
        self._future, self._results, self._missing, self._dispatcher = future, [None] * count, count, dispatcher
        self._lock = threading.Lock()
        self._is_uncut = False

    def begin(self) -> bool:
        """By the dispatcher, which holds its lock: a part is about to run."""
        if self._future.is_over:
            return False
        if not self._future.has_begun:
            self._future.has_begun = self._future.begin()
        return True

    def add(self, i: int, rows: int, value: Any) -> None:
        if not has_rows(value, rows):
            self._run_uncut()
            return
        with self._lock:
            if self._is_uncut:
                return
            self._results[i] = value
            self._missing -= 1
            if self._missing:
                return
        try:
            result = join(self._results)
        except (Uneven, TypeError, ValueError, RuntimeError):  # arrays that differ in more than their rows, say
            self._run_uncut()
            return
        if self._dispatcher.forget(self._future):
            self._future.set_result(result)

    def fail(self, error: BaseException) -> None:
        if isinstance(error, Uneven):
            self._run_uncut()
        elif not self._is_uncut and self._dispatcher.forget(self._future):
            _set_exception(self._future, error)

    def _run_uncut(self) -> None:
        with self._lock:
            if self._is_uncut:
                return
            self._is_uncut, self._results = True, []
        self._dispatcher.run_uncut(self._future)


class Part:
    """What the dispatcher settles for one part."""

    def __init__(self, whole: Whole, i: int, rows: int) -> None:
        self._whole, self._i, self._rows = whole, i, rows

    def begin(self) -> bool:
        return self._whole.begin()

    def set_running_or_notify_cancel(self) -> bool:
        return True

    def running(self) -> bool:
        return True

    def set_result(self, result: Any) -> None:
        self._whole.add(self._i, self._rows, result)

    def set_exception(self, exception: BaseException | None) -> None:
        self._whole.fail(exception or RuntimeError("a part of the request failed"))


def _set_exception(future: TaskFuture, error: BaseException) -> None:
    if future.running() or future.set_running_or_notify_cancel():
        future.set_exception(error)
