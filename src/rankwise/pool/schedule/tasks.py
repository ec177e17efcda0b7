"""A task, the future its caller holds, and the queue and the deadlines it waits in."""

from __future__ import annotations

import heapq
import itertools
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from rankwise.pool.memory.encoding import EncodedInputs

_making = threading.Lock()


class Outcome(Protocol):
    """What the pool settles: a future, or a part of one."""

    def begin(self) -> bool: ...
    def running(self) -> bool: ...
    def set_running_or_notify_cancel(self) -> bool: ...
    def set_result(self, result: Any) -> None: ...
    def set_exception(self, exception: BaseException | None) -> None: ...


class TaskOwner(Protocol):
    """What a task's future asks of the pool it belongs to."""

    def help(self, task: Task, timeout: float | None) -> float | None:
        """Read the workers' answers in the caller's thread until the task is over; what is left of the timeout."""
        ...

    def withdraw(self, task: Task) -> None: ...
    def forget(self, task: Task) -> bool: ...
    def run_uncut(self, task: Task) -> None: ...


class Task:
    """One request: its input on the lane, and how it has fared so far. What most tasks never need stands here once for all."""

    priority = 0
    deadline: float | None = None
    rows = 0  # 0: stands for itself; otherwise it may share a batch with others of the same key
    key: Any = None
    seed: int | None = None  # of its random numbers, whichever worker runs it; then it has no rows
    strikes = 0  # workers that died by its doing, as far as can be told
    hits = 0  # workers that died while it ran, for whatever reason
    alone = False  # it was in a batch that ended its worker, and runs by itself now
    is_over = False
    is_queued = False
    has_begun = False
    to_tensor = True
    is_lazy = False  # one of a stream: that all are done soon counts, not each by itself
    worker: Any = None
    slots: Sequence[Any] = ()  # of the arena, held until the task is over
    brisk = 0  # its serial, where its answer may well come before falling asleep and waking up would be over
    part: Outcome | None = None  # where its result goes, if it is not a future itself
    parts: Sequence[Task] = ()  # that run in its stead
    count = 1  # requests that it stands for
    is_extra = False  # a part that takes no place in the queue of its own: of a request, all but the last; of a chunk, all

    def __init__(self, model: Any, encoded: EncodedInputs, submitted: float) -> None:
        self.model, self.submitted = model, submitted
        self.node, self.size, self.slots, self.to_tensor = encoded

    @property
    def outcome(self) -> Outcome | None:
        return self.part

    def end(self) -> None:
        """It is over: let go of its input, which the caller would keep otherwise for as long as the future."""
        self.is_over = True
        self.node = self.worker = self.part = None
        self.slots = self.parts = ()


class TaskFuture(Task, Future[Any]):
    """A task that is its own future. The thread that waits for it reads the worker's answer itself, which saves a switch of threads.

    Most futures are fetched by the thread that submitted them, and never need the condition and the lists that every standard future is
    made with. They are made when a thread first asks for them. That thread asks before it looks at the state, and the state is set before
    looking whether a thread has asked, so one of the two always sees the other. The pool's lock keeps a task from beginning while it is
    cancelled.
    """

    _made: threading.Condition | None = None
    _state, _result, _exception = "PENDING", None, None
    _waiters: Any = ()
    _done_callbacks: Any = ()

    def __init__(self, model: Any, encoded: EncodedInputs, submitted: float, owner: TaskOwner) -> None:
        self.model, self.submitted, self._owner = model, submitted, owner
        self.node, self.size, self.slots, self.to_tensor = encoded

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        if self._made is None:
            with _making:
                if self._made is None:
                    self._waiters, self._done_callbacks = [], []
                    self._made = threading.Condition()
        return self._made

    @property
    def outcome(self) -> Outcome | None:
        return self

    def begin(self) -> bool:
        """As set_running_or_notify_cancel, under the pool's lock, where no thread can cancel it."""
        self._state = "RUNNING"
        return True

    def finish(self, result: Any) -> bool:
        """Set the result of a running task, which ends it. False where a thread waits for it and has to be told with `announce`."""
        self._result = result
        self._state = "FINISHED"
        self.is_over = True
        self.node = self.worker = None
        return self._made is None

    def announce(self) -> None:
        with self._condition:
            for waiter in self._waiters:
                waiter.add_result(self)
            self._condition.notify_all()
        self._invoke_callbacks()  # type: ignore[attr-defined]

    def set_result(self, result: Any) -> None:
        if self._state != "RUNNING":
            super().set_result(result)
        elif not self.finish(result):
            self.announce()

    def done(self) -> bool:
        return self._state not in ("PENDING", "RUNNING")

    def result(self, timeout: float | None = None) -> Any:
        if not self.is_over:
            timeout = self._owner.help(self, timeout)
        if self._state == "FINISHED" and self._exception is None:
            return self._result
        try:
            return super().result(timeout)
        finally:
            del self  # the exception's traceback holds this frame: it must not hold the future, which holds the exception

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self.is_over:
            timeout = self._owner.help(self, timeout)
        return super().exception(timeout)

    def cancel(self) -> bool:
        self._owner.withdraw(self)
        return super().cancel()


class TaskQueue:
    """Waiting tasks of one model: by priority, then in order of arrival; tasks that run again go to the front."""

    def __init__(self) -> None:
        self._lanes: dict[int, deque[Task]] = {}
        self._order: list[int] = []
        self._rows: dict[Any, int] = {}  # that wait, by key
        self.waiting = 0
        self.requests = 0  # that they stand for
        self.extra = 0  # of those, parts that are not counted as tasks of their own

    def push(self, task: Task, front: bool = False) -> None:
        lane = self._lanes.get(task.priority)
        if lane is None:
            # Empty queues go, or a priority that is made of the time would leave one behind for each task.
            self._lanes = {priority: others for priority, others in self._lanes.items() if others}
            lane = self._lanes[task.priority] = deque()
            self._order = sorted(self._lanes, reverse=True)
        if front:
            lane.appendleft(task)
        else:
            lane.append(task)
        task.is_queued = True
        self.waiting += 1
        self.requests += task.count
        self.extra += task.is_extra
        if task.rows:
            self._rows[task.key] = self._rows.get(task.key, 0) + task.rows

    def pop(self) -> Task | None:
        task = self.peek()
        if task is not None:
            self._lanes[task.priority].popleft()
            self.forget(task)
        return task

    def peek(self) -> Task | None:
        """The next task; tasks that are over (cancelled, expired) are dropped on the way."""
        if not self.waiting:
            return None
        for priority in self._order:
            lane = self._lanes[priority]
            while lane:
                if not lane[0].is_over:
                    return lane[0]
                lane.popleft()
        return None

    def forget(self, task: Task) -> None:
        """It waits no longer: it no longer takes up room, even where it has not fallen out yet."""
        if task.is_queued:
            task.is_queued = False
            self.waiting -= 1
            self.requests -= task.count
            self.extra -= task.is_extra
            if task.rows:
                left = self._rows[task.key] - task.rows
                if left:
                    self._rows[task.key] = left
                else:
                    del self._rows[task.key]  # there may be any number of shapes in the long run

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
                self.forget(task)
            else:
                passed.append(task)
        lane.extendleft(reversed(passed))
        return batch

    def rows_like(self, first: Task) -> int:
        """Rows that wait and could run with `first`."""
        return self._rows.get(first.key, 0)

    def all(self) -> list[Task]:
        return [task for priority in self._order for task in self._lanes[priority] if not task.is_over]


_FEW = 64  # entries that are not worth looking through


class Deadlines:
    def __init__(self) -> None:
        # A task knows its result, which is not to be kept for as long as the task was allowed to take.
        self._heap: list[tuple[float, int, weakref.ref[Task]]] = []
        self._ticket = itertools.count()
        self._look_at = _FEW

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, deadline: float, task: Task) -> None:
        heapq.heappush(self._heap, (deadline, next(self._ticket), weakref.ref(task)))
        if len(self._heap) >= self._look_at:
            self._heap = [entry for entry in self._heap if _is_open(entry[2])]
            heapq.heapify(self._heap)
            self._look_at = _FEW + 2 * len(self._heap)

    def next(self) -> float | None:
        """The next that still matters."""
        while self._heap and not _is_open(self._heap[0][2]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def passed(self, now: float) -> list[Task]:
        tasks = []
        while self._heap and self._heap[0][0] <= now:
            task = heapq.heappop(self._heap)[2]()
            if task is not None:
                tasks.append(task)
        return tasks


def _is_open(reference: weakref.ref[Task]) -> bool:
    task = reference()
    return task is not None and not task.is_over
