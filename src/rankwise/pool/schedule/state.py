"""What the pool keeps about each model and each worker, what batches cost, and which models have to leave a device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rankwise.pool.schedule.tasks import Task, TaskQueue

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
        """(a, b), or None while nothing ran."""
        if not self._n:
            return None
        mean_x, mean_y = self._x / self._n, self._y / self._n
        spread = self._xx / self._n - mean_x * mean_x
        if spread < 1e-9:  # one size only: where its cost comes from cannot be told, so half is laid to each
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
    """The usual time between two rows. Rows are only counted when they come; the gap is worked out when a batch is decided."""

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
    result_bytes: float | None = None  # of one request, at the most of late, where requests ran in chunks
    load_s: float = 0.2
    held_until: float = 0.0  # a batch of it waits for more rows until then
    virtual_s: float = 0.0  # service received; the model with the least is next
    broken: Any = None  # the finding that all its tasks fail with
    unbatched: Any = None  # the finding why its rows are not batched any more: none of them is believed that ran in a batch
    build_failures: int = 0
    not_before: float = 0.0  # a failed build is not tried again earlier
    is_measured: bool = False
    counted: Any = None  # its numbers in the pool's statistics
    is_current: bool = True  # False: its name belongs to another, or to nobody any more
    successor: ModelState | None = None  # built anew under the same name: tasks go there
    awaiting_load: list[Any] = field(default_factory=list)  # futures of callers that want it loaded, whether or not anything runs

    def may_run_on(self, device: str) -> bool:
        return self.device in ("cpu", device, device.split(":")[0])

    def place_on(self, device: str) -> str:
        """Whose memory it takes, in a worker of this device."""
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
    nbytes: int
    is_loading: bool = True
    last_used: float = 0.0
    orders: int = 0
    is_fresh: bool = True  # it was loaded and has not run since: those it was loaded for are served before it leaves for others
    is_leaving: bool = False  # it gets nothing more to do, and leaves when it has nothing left to do

    def begin(self) -> None:
        self.orders += 1
        self.is_fresh = False

    @property
    def is_needed(self) -> bool:
        """It cannot leave now."""
        return self.is_loading or self.orders > 0 or (self.is_fresh and bool(self.model.queue.waiting))


@dataclass(eq=False)
class WorkerState:
    number: int
    device: str  # "cpu", "cuda:0", ...
    is_ready: bool = False
    holds: dict[int, Holding] = field(default_factory=dict)
    inflight: dict[int, Order] = field(default_factory=dict)
    ahead_s: float = 0.0
    handle: Any = None  # the dispatcher's own end of it

    @property
    def is_loading(self) -> bool:
        return any(holding.is_loading for holding in self.holds.values())

    @property
    def held_bytes(self) -> int:
        return sum(holding.nbytes for holding in self.holds.values())


@dataclass(frozen=True)
class Load:
    worker: WorkerState
    model: ModelState


@dataclass(frozen=True)
class Drop:
    worker: WorkerState
    model: ModelState


@dataclass(frozen=True)
class Run:
    worker: WorkerState
    orders: list[Order]


Action = Load | Drop | Run


@dataclass(frozen=True)
class Forming:
    """A batch that could start now: its rows and how many it may have, when its oldest row came, and the first deadline in it."""

    rows: int
    max_rows: int
    oldest: float
    deadline: float | None = None


def wait_until(batch: Forming, fit: tuple[float, float] | None, gap_s: float | None, max_delay_s: float) -> float:
    """When it should start at the latest: at once, where waiting does not pay.

    One more row saves its own fixed cost b, and costs each of the rows that wait the time until it comes.
    """
    if batch.rows >= batch.max_rows or not max_delay_s or fit is None or gap_s is None:
        return batch.oldest
    a, b = fit
    if batch.rows * gap_s >= b:
        return batch.oldest
    latest = batch.oldest + max_delay_s
    if batch.deadline is not None:
        latest = min(latest, batch.deadline - 1.5 * (a * (batch.rows + 1) + b))
    return max(batch.oldest, latest)


@dataclass(frozen=True)
class Resident:
    """A model on a worker of the device."""

    worker: int
    model: int
    nbytes: int
    last_used: float
    in_use: bool


def evictions(residents: list[Resident], need: int, limit: int | None) -> list[Resident] | None:
    """What has to go for `need` more bytes; None where even that would not be enough right now."""
    if limit is None:
        return []
    over = sum(resident.nbytes for resident in residents) + need - limit
    chosen: list[Resident] = []
    for resident in sorted((r for r in residents if not r.in_use), key=lambda r: r.last_used):
        if over <= 0:
            break
        if resident.nbytes:
            chosen.append(resident)
            over -= resident.nbytes
    return chosen if over <= 0 else None


def can_ever_fit(need: int, limit: int | None) -> bool:
    return limit is None or need <= limit
