"""A task and the future its caller holds; requests that travel as one task (chunks); and requests that run as several (parts).

A task and a future for each quick request would take longer than a small model does. If anything happens to a chunk (its worker dies, one
of its requests hangs or is slow), each request without an answer becomes a task of its own, and the request that was running is to
blame."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np

from rankwise.pool.errors import PoolClosed
from rankwise.pool.memory.encoding import EVEN, UNEVEN, EncodedInputs, Node, Uneven, has_rows
from rankwise.pool.memory.requests import GatheredRows, cut, join
from rankwise.pool.memory.shared_memory import Arena

_making = threading.Lock()
_NO_ANSWER = object()
_ROW_BYTES = 100  # the size of a request in a packet if its array is on the lane


class TaskOwner(Protocol):
    """The methods of the pool that a task's future calls."""

    def help(self, task: Task, timeout: float | None) -> float | None:
        """Read the workers' answers in the caller's thread until the task is over; returns what is left of the timeout."""
        ...

    def withdraw(self, task: Task) -> None: ...
    def forget(self, task: Task) -> bool: ...
    def run_uncut(self, task: Task) -> None: ...
    def go_on(self, now: float) -> None: ...


class Task:
    """One request: its input on the lane, and how it has fared so far. Defaults are class attributes, because most tasks never set them."""

    priority = 0
    deadline: float | None = None
    rows = 0  # 0: it runs by itself; otherwise it may share a batch with tasks of the same key
    key: Any = None
    seed: int | None = None  # of its random numbers, whichever worker runs it; a task with a seed has no rows
    deaths = 0  # workers that died while they ran it, for whatever reason
    proven_deaths = 0  # deaths that it is known to have caused
    alone = False  # it was in a batch that ended its worker, and runs by itself now
    is_over = False
    is_queued = False
    has_begun = False
    to_tensor = True
    is_lazy = False  # belongs to a stream: what counts is when all its tasks are done, not each one
    worker: Any = None
    slots: Sequence[Any] = ()  # of the arena, held until the task is over
    brisk = 0  # its serial, if its answer may come sooner than a thread could fall asleep and wake up
    parts: Sequence[Task] = ()  # that run in its stead
    count = 1  # requests that it stands for
    is_extra = False  # a part that takes no place in the queue of its own: of a request, all but the last; of a chunk, all

    def __init__(self, model: Any, encoded: EncodedInputs, submitted: float) -> None:
        self.model, self.submitted = model, submitted
        self.node, self.size, self.slots, self.to_tensor = encoded

    def begin(self) -> bool:
        """Whether it may run. The pool's lock is held."""
        return True

    def settle(self, ok: bool, value: Any) -> None:
        """Pass its result or its exception on to the future. No lock is held."""

    def end(self) -> None:
        """The task is over: let go of its input, which would otherwise live for as long as the caller keeps the future."""
        self.is_over = True
        self.node = self.worker = None
        self.slots = self.parts = ()


class TaskFuture(Task, Future[Any]):
    """A task that is its own future. The thread that waits for it reads the worker's answer itself, which saves a switch of threads.

    Most futures are fetched by the thread that submitted them, and never need the condition and the lists that every standard future is
    made with. They are made when a thread first asks for them. A thread that waits makes them before it reads the state; a thread that
    sets the state looks for them afterwards. So one of the two always sees the other. The pool's lock keeps a task from beginning while it
    is cancelled.
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

    def begin(self) -> bool:
        """Like set_running_or_notify_cancel, under the pool's lock, where no thread can cancel it."""
        self._state = "RUNNING"
        return True

    def settle(self, ok: bool, value: Any) -> None:
        """A task that worked has its result already: `finish` has set it."""
        if ok:
            self.announce()
        elif self.running() or self.set_running_or_notify_cancel():
            self.set_exception(value)

    def finish(self, result: Any) -> bool:
        """Set the result of a running task, which ends it. False if a thread waits for it and `announce` has to tell it."""
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


class Chunk(TaskFuture):
    """Requests that travel as one task. Its own result is None: `value` gives the result of each request."""

    is_here = False
    is_spoilt = False

    def __init__(self, model: Any, kind: tuple[Any, ...], owner: TaskOwner, rows: GatheredRows | None = None) -> None:
        super().__init__(model, (None, 0, (), kind[-1]), 0.0, owner)
        self._rows = rows  # the requests' arrays, where they lie side by side on the lane
        self.most = rows.most if rows is not None else 0
        self.kind = kind  # what they have in common: model, tag, dtype and shape (or nothing of these), whether tensors come back
        self.is_lazy = True
        self.count = self.fetched = 0  # requests, and those whose results the caller has
        self._data: list[Any] = []  # the bytes of each request, or its node
        self._slots: dict[int, Any] = {}  # of each request that has slots
        self._values: list[Any] = []  # empty until the first answers come, or until requests become tasks of their own
        self._errors: dict[int, BaseException] = {}
        self._kept = 0  # the worker still runs the requests before this place; the others were taken from it
        self._settling = threading.Lock()

    def add(self, data: Any, size: int, slots: Any = ()) -> None:
        self._data.append(data)
        if slots:
            self._slots[self.count] = slots
            self.slots = (*self.slots, *slots)
        self.count += 1
        self.size += size

    def add_row(self, array: np.ndarray[Any, Any]) -> None:
        assert self._rows is not None
        self._rows.add(array, 1)
        self.count += 1
        self.size += _ROW_BYTES

    @property
    def is_cut(self) -> bool:
        """Whether some of its requests are tasks of their own."""
        return bool(self._values)

    def payload(self) -> tuple[Any, ...]:
        _, tag, dtype, shape, _ = self.kind
        if tag is None:
            return UNEVEN, self._data
        return EVEN, dtype, shape, self.count, b"".join(self._data) if self._rows is None else self._rows.place(0, self.count)

    def take(self, first: int, values: list[Any], errors: dict[int, BaseException]) -> bool:
        """Take answers of the requests from this place on; returns whether all requests have one now."""
        with self._settling:
            if not self._values and first == 0 and len(values) == self.count:
                self._values, self._errors = values, errors
                return True
            self._cut()
            for i, value in enumerate(values, first):
                if i < self.count and self._values[i] is _NO_ANSWER:
                    self._values[i] = value
                    if i - first in errors:
                        self._errors[i] = errors[i - first]
            return all(value is not _NO_ANSWER for value in self._values)

    def wait(self) -> None:
        """Wait until all tasks have answers. An error of the whole chunk (its model cannot be built) is the error of each."""
        error = self.exception()  # returns the chunk's error; what it raises comes from a signal handler
        if isinstance(error, PoolClosed):
            raise error
        if error is not None:
            self._errors = dict.fromkeys(range(self.count), error)
        self.is_here = True

    def value(self, i: int) -> Any:
        """What its i-th request gave, once; raises what it raised."""
        if self._errors and i in self._errors:
            raise self._errors.pop(i)
        value, self._values[i] = self._values[i], None
        return value

    def tasks_from(self, first: int) -> list[Task]:
        """Make a task of each request from this place on that has no answer and is not a task yet. The pool's lock is held."""
        with self._settling:
            self._cut()
            wanted = [i for i in range(first, self._kept) if self._values[i] is _NO_ANSWER]
            self._kept = min(self._kept, first)
        tasks: list[Task] = [Item(self, i, self._owner) for i in wanted]
        self.parts = (*self.parts, *tasks)
        return tasks

    def _cut(self) -> None:
        if not self._values:
            self._values, self._kept = [_NO_ANSWER] * self.count, self.count

    def encoded(self, i: int) -> EncodedInputs:
        """The inputs of its i-th request for a task of its own, which holds their place on the lane from now on."""
        _, tag, dtype, shape, to_tensor = self.kind
        if self._rows is not None:
            place, size, held = self._rows.lent(i, i + 1)
            return ("(", ((tag, dtype, shape, place),)), size, held, to_tensor
        node: Node = self._data[i] if tag is None else ("(", ((tag, dtype, shape, self._data[i]),))
        slots = self._slots.pop(i, ())
        left = list(self.slots)
        for slot in slots:
            if slot in left:  # it is not if the model has kept an input: those pages are never used again
                left.remove(slot)  # once: the same memory may have been given to several requests
        self.slots = left
        return node, self.size // self.count, slots, to_tensor

    def end(self) -> None:
        super().end()
        self.release()

    def release(self) -> None:
        self._data, self._slots, self._rows = [], {}, None


class Item(Task):
    """One request of a chunk, as a task of its own."""

    is_lazy = has_begun = is_extra = True

    def __init__(self, chunk: Chunk, place: int, owner: TaskOwner) -> None:
        super().__init__(chunk.model, chunk.encoded(place), chunk.submitted)
        self._chunk, self.place, self._owner, self.priority = chunk, place, owner, chunk.priority

    def settle(self, ok: bool, value: Any) -> None:
        if self._chunk.take(self.place, [value if ok else None], {} if ok else {0: value}) and self._owner.forget(self._chunk):
            self._chunk.set_result(None)


def cut_up(task: TaskFuture, owner: TaskOwner, arena: Arena) -> None:
    """Cut a request into parts of as many rows as may run together. Each part knows its place in the result."""
    size = task.model.max_batch
    starts = range(0, task.rows, size)
    whole, parts = Whole(task, len(starts), owner), []
    for i, start in enumerate(starts):
        rows = min(size, task.rows - start)
        for slot in task.slots:
            arena.hold(slot)
        part = Part(task, (cut(task.node, start, start + rows), task.size // len(starts), task.slots, task.to_tensor), whole, i)
        part.rows, part.is_extra = rows, start + rows < task.rows
        parts.append(part)
    task.parts = parts


class Whole:
    """Collects the results of a request's parts; the first failure is the request's."""

    def __init__(self, future: TaskFuture, count: int, owner: TaskOwner) -> None:
        self.future, self._results, self._missing, self._owner = future, [None] * count, count, owner
        self._lock = threading.Lock()

    def add(self, i: int, rows: int, value: Any) -> None:
        if not has_rows(value, rows):
            self._owner.run_uncut(self.future)
            return
        with self._lock:
            self._results[i] = value
            self._missing -= 1
            if self._missing:
                return
        try:
            result = join(self._results)
        except (Uneven, TypeError, ValueError, RuntimeError):  # arrays that differ in more than their rows, say
            self._owner.run_uncut(self.future)
            return
        if self._owner.forget(self.future):
            self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        if isinstance(error, Uneven):
            self._owner.run_uncut(self.future)
        elif not self.future.alone and self._owner.forget(self.future):
            self.future.settle(False, error)


class Part(Task):
    """Some rows of a request that has more of them than may run together."""

    def __init__(self, task: TaskFuture, encoded: EncodedInputs, whole: Whole, place: int) -> None:
        super().__init__(task.model, encoded, task.submitted)
        self._whole, self._place = whole, place
        self.key, self.deadline, self.priority = task.key, task.deadline, task.priority

    def begin(self) -> bool:
        future = self._whole.future
        if not future.is_over and not future.has_begun:
            future.has_begun = future.begin()
        return not future.is_over

    def settle(self, ok: bool, value: Any) -> None:
        if ok:
            self._whole.add(self._place, self.rows, value)
        else:
            self._whole.fail(value)
