"""A task, and the future its caller holds."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rankwise.pool.dispatch import Dispatcher


_making = threading.Lock()


class TaskFuture(Future[Any]):
    """A concurrent.futures.Future; whoever waits for it reads the worker's answer with its own hands, which saves a switch of threads.

    Most are fetched by the thread that submitted them and never need the condition that all others are made with: it is made when somebody
    asks for it. Whoever asks does so before looking at the state, and the state is set before looking whether somebody has asked, so one of
    the two always sees the other.
    """

    def __init__(self, task: Task, dispatcher: Dispatcher) -> None:
        self._task, self._dispatcher = task, dispatcher
        self._made: threading.Condition | None = None
        self._state, self._result, self._exception = "PENDING", None, None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Any] = []

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        if self._made is None:
            with _making:
                if self._made is None:
                    self._made = threading.Condition()
        return self._made

    def _is_watched(self) -> bool:
        return self._made is not None

    def begin(self) -> None:
        """As set_running_or_notify_cancel, for a future nobody has seen yet."""
        self._state = "RUNNING"

    def set_result(self, result: Any) -> None:
        if self._state != "RUNNING" or self._is_watched():
            super().set_result(result)
            return
        self._result = result
        self._state = "FINISHED"
        if self._is_watched():  # since this very moment
            with self._condition:
                for waiter in self._waiters:
                    waiter.add_result(self)
                self._condition.notify_all()
            self._invoke_callbacks()  # type: ignore[attr-defined]

    def result(self, timeout: float | None = None) -> Any:
        if not self._task.is_over:
            timeout = self._dispatcher.help(self._task, timeout)
        if self._state == "FINISHED" and self._exception is None:
            return self._result
        try:
            return super().result(timeout)
        finally:
            del self  # the exception's traceback holds this frame: it must not hold the future, which holds the exception

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self._task.is_over:
            timeout = self._dispatcher.help(self._task, timeout)
        return super().exception(timeout)

    def cancel(self) -> bool:
        was_pending = super().cancel()
        if was_pending:
            self._dispatcher.cancelled(self._task)
        return was_pending


class Outcome(Protocol):
    """What the dispatcher settles: a future, or a part of one."""

    def set_running_or_notify_cancel(self) -> bool: ...
    def running(self) -> bool: ...
    def set_result(self, result: Any) -> None: ...
    def set_exception(self, exception: BaseException | None) -> None: ...


class Task:
    """One request: its input on the lane, and how it has fared so far. What most tasks never need stands here once for all."""

    priority = 0
    deadline: float | None = None
    rows = 0  # 0: stands for itself; otherwise it may share a batch with others of the same key
    key: Any = None
    strikes = 0  # workers that died by its doing, as far as can be told
    hits = 0  # workers that died while it ran, for whatever reason
    alone = False  # it was in a batch that ended its worker, and runs by itself now
    is_over = False
    has_begun = False
    to_tensor = True
    node: Any = None  # of its inputs, where they can be joined with others'
    worker: Any = None

    def __init__(self, model: Any, data: bytes, future: Outcome | None, submitted: float) -> None:
        self.model, self.data, self.future, self.submitted = model, data, future, submitted
        self.slots: list[Any] = []  # of the arena, held until the task is over


class TaskQueue:
    """Waiting tasks of one model: by priority, then in order of arrival; those that run again go to the front."""

    def __init__(self) -> None:
        self._lanes: dict[int, deque[Task]] = {}
        self._order: list[int] = []
        self.waiting = 0

    def push(self, task: Task, front: bool = False) -> None:
        lane = self._lanes.get(task.priority)
        if lane is None:
            lane = self._lanes[task.priority] = deque()
            self._order = sorted(self._lanes, reverse=True)
        if front:
            lane.appendleft(task)
        else:
            lane.append(task)
        self.waiting += 1

    def pop(self) -> Task | None:
        task = self.peek()
        if task is not None:
            self._lanes[task.priority].popleft()
            self.waiting -= 1
        return task

    def peek(self) -> Task | None:
        """The next task; those that are over (cancelled, expired) fall out on the way."""
        if not self.waiting:
            return None
        for priority in self._order:
            lane = self._lanes[priority]
            while lane:
                if not lane[0].is_over:
                    return lane[0]
                lane.popleft()
        return None

    def forget_one(self) -> None:
        """A waiting task has become over: it no longer takes up room."""
        self.waiting -= 1

    def pop_like(self, first: Task, max_rows: int, look: int = 256) -> list[Task]:
        """`first`, which was just popped, and tasks that may share its batch, as many as fit."""
        batch, rows = [first], first.rows
        if first.alone or not first.rows:
            return batch
        lane, passed = self._lanes[first.priority], []
        while lane and rows < max_rows and look:
            look -= 1
            task = lane.popleft()
            if task.is_over:
                continue
            if task.key == first.key and not task.alone and rows + task.rows <= max_rows:
                batch.append(task)
                rows += task.rows
                self.waiting -= 1
            else:
                passed.append(task)
        lane.extendleft(reversed(passed))
        return batch

    def rows_like(self, first: Task, enough: int) -> int:
        """Rows that wait and could run with `first`."""
        rows = 0
        for task in self._lanes[first.priority]:
            if not task.is_over and task.key == first.key and not task.alone:
                rows += task.rows
                if rows >= enough:
                    break
        return rows

    def all(self) -> list[Task]:
        return [task for priority in self._order for task in self._lanes[priority] if not task.is_over]
