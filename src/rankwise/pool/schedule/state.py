"""What the pool keeps about each model (its queue, what its batches cost) and about each worker (its seat, what it holds and runs)."""

from __future__ import annotations

import hashlib
import heapq
import itertools
import secrets
import time
import weakref
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # `import rankwise.pool` needs nothing of shared memory
    from rankwise.pool.schedule.tasks import Task

# The pool's clock. Tests that stop or move the time (freezegun) replace `time.monotonic` for all code; with that clock, rows would wait for
# others, and workers that hang go unnoticed, until the test puts it back.
monotonic = partial(time.clock_gettime, time.CLOCK_MONOTONIC)
monotonic_ns = partial(time.clock_gettime_ns, time.CLOCK_MONOTONIC)


class TaskQueue:
    """Waiting tasks of one model: by priority, then in order of arrival; tasks that run again go to the front."""

    def __init__(self) -> None:
        self._lanes: dict[int, deque[Task]] = {}
        self._order: list[int] = []
        self._rows: dict[Any, int] = {}  # rows that wait, by key
        self.waiting = 0
        self.requests = 0  # requests that the waiting tasks stand for
        self.extra = 0  # waiting tasks that do not count for the limit of the queue

    def push(self, task: Task, front: bool = False) -> None:
        lane = self._lanes.get(task.priority)
        if lane is None:
            # Drop empty lanes: if each task's priority is made from the time, one per task would be left.
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
        """Stop counting the task as waiting, even if it is still in its lane."""
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
                    del self._rows[task.key]  # in the long run there may be any number of keys

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
        return self._rows.get(first.key, 0)

    def all(self) -> list[Task]:
        return [task for priority in self._order for task in self._lanes[priority] if not task.is_over]


_FEW = 64  # fewer entries than this are not worth looking through


class Deadlines:
    def __init__(self) -> None:
        # Weak references, because a task holds its result, which must not be kept until the deadline.
        self._heap: list[tuple[float, int, weakref.ref[Task]]] = []
        self._ticket = itertools.count()
        self._look_at = _FEW

    def add(self, deadline: float, task: Task) -> None:
        heapq.heappush(self._heap, (deadline, next(self._ticket), weakref.ref(task)))
        if len(self._heap) >= self._look_at:
            self._heap = [entry for entry in self._heap if _is_open(entry[2])]
            heapq.heapify(self._heap)
            self._look_at = _FEW + 2 * len(self._heap)

    def next(self) -> float | None:
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


# Read when torch, MKL, OpenBLAS or numexpr are loaded, so they are set before that.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@dataclass(frozen=True)
class Seat:
    """What a worker is given: its device, its share of the cores, and the cores themselves where it is pinned."""

    device: str
    threads: int
    cpus: tuple[int, ...] = ()

    @property
    def env(self) -> dict[str, str]:
        shown = self.device.split(":")[1] if ":" in self.device else ""
        threads = {name: str(self.threads) for name in THREAD_VARIABLES}
        return {**threads, "CUDA_VISIBLE_DEVICES": shown}


@dataclass(frozen=True)
class PoolPlan:
    """The seats of the workers, and the sentence that explains how many there are."""

    seats: list[Seat]
    why: str


_MEMORY = 0.97  # weight of what was known before; about the last thirty batches count


class CostModel:
    """Least squares of seconds = a·rows + b with fading memory; neither a nor b is ever negative."""

    def __init__(self) -> None:
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, rows: int, seconds: float) -> None:
        self._n = self._n * _MEMORY + 1
        self._x = self._x * _MEMORY + rows
        self._y = self._y * _MEMORY + seconds
        self._xx = self._xx * _MEMORY + rows * rows
        self._xy = self._xy * _MEMORY + rows * seconds

    def fit(self) -> tuple[float, float] | None:
        """(a, b); None before the first run."""
        if not self._n:
            return None
        mean_x, mean_y = self._x / self._n, self._y / self._n
        spread = self._xx / self._n - mean_x * mean_x
        if spread < 1e-9:  # only one size so far: which part the cost comes from is unknown, so each gets half
            return mean_y / (2 * max(mean_x, 1.0)), mean_y / 2
        a = max(0.0, (self._xy / self._n - mean_x * mean_y) / spread)
        b = mean_y - a * mean_x
        if b < 0:
            a, b = mean_y / mean_x, 0.0
        return a, b

    def seconds(self, rows: int) -> float | None:
        fit = self.fit()
        return None if fit is None else fit[0] * rows + fit[1]


class Arrivals:
    """The usual time between two rows. Rows are only counted when they come; the time is worked out when a batch is decided."""

    def __init__(self) -> None:
        self.rows = 0  # since the last look
        self._looked: float | None = None
        self._gap_s: float | None = None

    def gap_s(self, now: float) -> float | None:
        if self.rows:
            if self._looked is not None:
                gap_s = min(1.0, (now - self._looked) / self.rows)
                before = 0.9**self.rows
                self._gap_s = gap_s if self._gap_s is None else before * self._gap_s + (1 - before) * gap_s
            self._looked, self.rows = now, 0
        return self._gap_s


@dataclass(eq=False)
class ModelState:
    """One model of the pool, wherever it is loaded."""

    number: int
    name: str
    device: str  # where it may run: "cpu" (any worker's), "cuda" (any GPU), "cuda:1" (this one)
    replicas: int | None  # None: as many as the load asks for
    max_batch: int
    max_delay_s: float
    nbytes: int  # declared, then measured
    limit_s: float | None
    queue: TaskQueue = field(default_factory=TaskQueue)
    cost: CostModel = field(default_factory=CostModel)
    arrivals: Arrivals = field(default_factory=Arrivals)
    order_s: float | None = None  # the usual seconds of one order
    result_bytes: float | None = None  # the recent maximum for one request, of requests that ran in chunks
    load_s: float = 0.2
    held_until: float = 0.0  # a batch of it waits for more rows until then
    virtual_s: float = 0.0  # service received; the model with the least is next
    broken: Any = None  # the finding that all its tasks fail with
    unbatched: Any = None  # the finding why its rows are not batched any more; results from batches no longer count
    build_failures: int = 0
    not_before: float = 0.0  # a failed build is not tried again earlier
    is_measured: bool = False
    stamp: Any = None  # of the weights it was last built with
    counted: Any = None  # its numbers in the pool's statistics
    is_current: bool = True  # False: removed or replaced, or built to replace another and not ready yet
    successor: ModelState | None = None  # built anew under the same name: tasks go there
    awaiting_load: list[Any] = field(default_factory=list)  # futures of callers that want it loaded, whether or not anything runs

    def may_run_on(self, device: str) -> bool:
        return self.device in ("cpu", device, device.split(":")[0])

    def place_on(self, device: str) -> str:
        """The device whose memory it takes in a worker of this device."""
        return "cpu" if self.device == "cpu" else device

    def ran(self, rows: int, seconds: float) -> None:
        self.order_s = 0.8 * self.order_s + 0.2 * seconds if self.order_s is not None else seconds
        if rows:
            self.cost.add(rows, seconds)

    def gave(self, nbytes: float) -> None:
        self.result_bytes = max(nbytes, 0.9 * (self.result_bytes or 0.0))


class Order:
    """What was sent to a worker under one serial: a load, or tasks that run together."""

    __slots__ = ("carrier", "expected_s", "is_joined", "is_load", "model", "serial", "tasks", "worker")

    def __init__(self, serial: int, model: ModelState, tasks: list[Task], expected_s: float, worker: WorkerState, is_load: bool = False):
        self.serial, self.model, self.tasks, self.expected_s, self.worker, self.is_load = serial, model, tasks, expected_s, worker, is_load
        self.carrier: Any = None  # what holds its tasks' rows on the lane, where they are too many for a packet
        self.is_joined = False  # its tasks were sent as one request, and come back as one


@dataclass(eq=False)
class Holding:
    """A model inside a worker."""

    model: ModelState
    worker: WorkerState
    nbytes: int
    is_loading: bool = True
    last_used: float = 0.0
    orders: int = 0
    is_fresh: bool = True  # loaded and not run since: it serves the tasks it was loaded for before it makes room
    is_leaving: bool = False  # it gets nothing more to do, and leaves when it has nothing left to do

    @property
    def is_needed(self) -> bool:
        """Whether it has to stay in the worker for now."""
        return self.is_loading or self.orders > 0 or (self.is_fresh and bool(self.model.queue.waiting))


@dataclass(eq=False)
class WorkerState:
    number: int
    device: str  # "cpu", "cuda:0", ...
    is_ready: bool = False
    holds: dict[int, Holding] = field(default_factory=dict)
    inflight: dict[int, Order] = field(default_factory=dict)
    ahead_s: float = 0.0
    handle: Any = None  # a WorkerHandle, the pool's end of the worker

    @property
    def held_bytes(self) -> int:
        return sum(holding.nbytes for holding in self.holds.values())


class Load(NamedTuple):
    worker: WorkerState
    model: ModelState


class Drop(NamedTuple):
    worker: WorkerState
    model: ModelState


class Run(NamedTuple):
    worker: WorkerState
    orders: list[Order]


Action = Load | Drop | Run


# Seeds: those of workers, models and requests all come from the pool's.


def any_seed() -> int:
    return secrets.randbits(63)


def seed_of(seed: int | None, number: int) -> int | None:
    """The seed of the request with this number in a stream that has this seed."""
    return derived(seed, number) if seed is not None else None


def derived(seed: int, *what: str | int) -> int:
    """A seed made of another one and some words; equal arguments give equal seeds."""
    return int.from_bytes(hashlib.blake2b(repr((seed, *what)).encode(), digest_size=8).digest(), "big") >> 1
