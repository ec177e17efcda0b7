"""Decides what each worker does next. Pure: no sockets, no clock; `transport/sender.py` acts on what `plan` returns."""

from __future__ import annotations

from collections.abc import Callable

from rankwise.pool.schedule.state import Action, Drop, Holding, Load, ModelState, Order, Run, WorkerState
from rankwise.pool.schedule.tasks import Task

AHEAD_S = 0.005  # of work that waits inside a worker, so that it need not wait for us; more would be stuck behind a slow task
AHEAD_LAZY_S = 0.04  # the same for a stream, because waking this process for each of its tasks takes time from computing
PART = 0.75  # of a worker's share of what is left; quicker workers get the rest
AHEAD_ORDERS = 128
AHEAD_BYTES = 60_000
QUANTUM = 32  # orders of one model before the others get their turn
UNKNOWN_S = AHEAD_S  # a model that has not run yet gets one task at a time
LEAST_LOAD_S = 0.02


class Scheduler:
    """Queues, workers and budgets; every method that needs the time is given it."""

    def __init__(self, models: list[ModelState], budgets: dict[str, int]) -> None:
        self.models = {model.number: model for model in models}
        self.workers: dict[int, WorkerState] = {}
        self.budgets = budgets
        self.wake_at: float | None = None  # when a batch that waits for more rows has waited enough
        self.serial = 0  # of the latest order
        self._kept: WorkerState | None = None  # gets nothing new until it has loaded a model that a caller of `load` waits for
        self._keep_after = 0.0

    def add(self, task: Task) -> None:
        model: ModelState = task.model
        if not model.queue.waiting:
            active = [m.virtual_s for m in self.models.values() if m.queue.waiting]
            if active:
                model.virtual_s = max(model.virtual_s, min(active))  # no credit for time it did not ask for
        model.arrivals.rows += task.rows
        model.queue.push(task)

    def add_again(self, tasks: list[Task]) -> None:
        """Put the tasks of a lost worker back to the front of their queues, in their old order."""
        for task in reversed(tasks):
            task.worker = None
            task.model.queue.push(task, front=True)

    def idle_holder(self, model: ModelState) -> WorkerState | None:
        """An idle worker that holds the model, or None; always None while tasks wait for the model."""
        if not model.queue.waiting and model.broken is None:
            for worker in self.workers.values():
                if not worker.inflight and worker.is_ready and worker is not self._kept:
                    holding = worker.holds.get(model.number)
                    if holding is not None and not holding.is_loading and not holding.is_leaving:
                        return worker
        return None

    def is_best_alone(self, model: ModelState, now: float) -> bool:
        """Whether a row that comes while no other waits should start at once, rather than wait for more."""
        model.arrivals.rows += 1
        if wait_until(1, model, now, None, now) <= now:
            return True
        model.arrivals.rows -= 1  # it is counted when it is queued
        return False

    def begin(self, worker: WorkerState, model: ModelState, tasks: list[Task], expected: float, serial: int) -> Order:
        """Record that these tasks are with the worker from now on, under this serial."""
        worker.inflight[serial] = order = Order(serial, model, tasks, expected, worker)
        worker.ahead_s += expected
        holding = worker.holds[model.number]
        holding.orders, holding.is_fresh = holding.orders + 1, False
        model.virtual_s += expected
        for task in tasks:
            task.worker = worker
        return order

    @property
    def has_waiting(self) -> bool:
        for model in self.models.values():  # noqa: SIM110  (any() makes a generator, which takes longer than all else here)
            if model.queue.waiting:
                return True
        return False

    def plan(self, now: float) -> list[Action]:
        """Fill every worker that has room; idle ones first."""
        self.wake_at = None
        actions: list[Action] = []
        wanted = [model for model in self.models.values() if model.awaiting_load]
        self._kept = self._worker_to_keep(wanted, now) if wanted else None
        hungry = [
            worker
            for worker in self.workers.values()
            if worker.is_ready
            and worker is not self._kept
            and (len(worker.inflight) < 2 or (worker.ahead_s < AHEAD_LAZY_S / 2 and len(worker.inflight) < AHEAD_ORDERS // 2))
        ]
        for worker in sorted(hungry, key=lambda w: (len(w.inflight), w.held_bytes, len(w.holds))):
            actions += self._fill(worker, now)
        for model in wanted:
            actions += self._load_wanted(model, now)
        return actions

    def _worker_to_keep(self, wanted: list[ModelState], now: float) -> WorkerState | None:
        """The worker that gets nothing new until it has loaded a model that a caller of `load` waits for; tasks could keep all workers busy
        for ever. It is the one with the least to do, one at a time, and in between tasks have as long as the load took."""
        if now < self._keep_after or any(holding.is_loading for holding in self._holdings()):
            return None
        for model in wanted:
            able = [worker for worker in self.workers.values() if self._may_load(worker, model, now)]
            worker = min(able, key=lambda worker: (len(worker.inflight), worker.ahead_s), default=None)
            if worker is not None and (worker.inflight or self._leaving_for(worker, model) is not None):
                return worker
        return None

    def _may_load(self, worker: WorkerState, model: ModelState, now: float) -> bool:
        return worker.is_ready and model.number not in worker.holds and self._should_load(worker, model, now)

    def _load_wanted(self, model: ModelState, now: float) -> list[Action]:
        """A caller of `load` waits for this model, though it may have no task yet. Only an idle worker loads it at once."""
        for worker in self.workers.values():
            if not worker.inflight and self._may_load(worker, model, now):
                return self._load(worker, model, now)
        return []

    def is_loaded(self, model: ModelState) -> bool:
        """Whether as many workers hold the model as it should have."""
        return sum(not holding.is_loading and not holding.is_leaving for holding in self.holdings_of(model)) >= (model.replicas or 1)

    def holdings_of(self, model: ModelState) -> list[Holding]:
        return [worker.holds[model.number] for worker in self.workers.values() if model.number in worker.holds]

    def let_leave(self, model: ModelState) -> None:
        """Make the model leave all workers once they have done what they were given. Other tasks, waiting or new, have it loaded again."""
        for holding in self.holdings_of(model):
            holding.is_leaving = True

    def _drops(self, is_due: Callable[[Holding], bool]) -> list[Action]:
        """Drop the models that are due to leave and have nothing to do."""
        return [self._drop(holding) for holding in self._holdings() if not holding.is_loading and not holding.orders and is_due(holding)]

    def leaving_drops(self) -> list[Action]:
        return self._drops(lambda holding: holding.is_leaving)

    def idle_drops(self, now: float, idle_s: float) -> list[Action]:
        return self._drops(lambda holding: not holding.model.queue.waiting and now - holding.last_used > idle_s)

    def _holdings(self) -> list[Holding]:
        return [holding for worker in self.workers.values() for holding in worker.holds.values()]

    def take_back(self, worker: WorkerState, order: Order, now: float) -> None:
        worker.ahead_s = max(0.0, worker.ahead_s - order.expected_s) if worker.inflight else 0.0
        holding = worker.holds.get(order.model.number)
        if holding is not None:
            holding.orders -= 1
            holding.last_used = now

    def loaded(self, worker: WorkerState, model: ModelState, nbytes: int, seconds: float, now: float) -> list[Action]:
        """A load succeeded. The model's measured size may make others leave, or the model itself if those are in use."""
        holding = worker.holds[model.number]
        holding.is_loading, holding.nbytes, holding.last_used = False, nbytes, now
        model.load_s = max(LEAST_LOAD_S, seconds)
        self._keep_after = now + model.load_s
        model.nbytes, model.is_measured, model.build_failures = nbytes, True, 0
        others = [other for other in self._residents(model.place_on(worker.device)) if other is not holding]
        leaving = evictions(others, nbytes, self.budgets.get(model.place_on(worker.device)))
        return [self._drop(other) for other in ([holding] if leaving is None else leaving)]

    def lost(self, worker: WorkerState) -> list[Order]:
        """Forget a worker that is gone; returns the orders that it had."""
        self.workers.pop(worker.number, None)
        orders = list(worker.inflight.values())
        worker.inflight, worker.holds, worker.is_ready = {}, {}, False
        return orders

    def recall(self, worker: WorkerState, orders: list[Order], now: float) -> None:
        """Put orders that the worker has not begun, and will not begin, back into their queues."""
        for order in reversed(orders):
            del worker.inflight[order.serial]
            self.take_back(worker, order, now)
            self.add_again([task for task in order.tasks if not task.is_over])

    def next_serial(self) -> int:
        self.serial += 1
        return self.serial

    def _fill(self, worker: WorkerState, now: float) -> list[Action]:
        actions: list[Action] = []
        orders: list[Order] = []
        nbytes, is_its_turn = 0, False
        for model in self.by_turn():
            most_s = self._most_ahead_s(worker, model)
            while self._has_room(worker, model, most_s) and nbytes < AHEAD_BYTES:
                holding = worker.holds.get(model.number)
                if holding is None:
                    if self._should_load(worker, model, now):
                        if not worker.inflight and not orders:
                            loading = self._load(worker, model, now)
                            if not loading:  # the models in its way are in use: this worker may do something else meanwhile
                                break
                            actions += loading
                        is_its_turn = True  # the models behind it get nothing, or the worker would never be free to load this one
                    break
                if holding.is_loading or holding.is_leaving:
                    break
                order = self._next_order(worker, model, now)
                if order is None:
                    break
                orders.append(order)
                nbytes += sum([task.size + 40 for task in order.tasks])
                if len(orders) % QUANTUM == 0:
                    break
            if is_its_turn or self._is_kept_waiting(worker, model):
                break
        if orders:
            actions.append(Run(worker, orders))
        return actions

    def _most_ahead_s(self, worker: WorkerState, model: ModelState) -> float:
        """How many seconds of a stream's work may wait inside this worker: most of its share of what is left, so that all workers end
        together. 0 while it still has half of that: otherwise it would get, and answer, one task at a time."""
        left_s = model.queue.requests * (model.order_s or UNKNOWN_S) + sum([other.ahead_s for other in self.workers.values()])
        most_s = min(AHEAD_LAZY_S, max(AHEAD_S / 2, PART * left_s / len(self.workers)))
        return most_s if worker.ahead_s < max(most_s, AHEAD_S) / 2 else 0.0

    def _has_room(self, worker: WorkerState, model: ModelState, most_s: float) -> bool:
        head = model.queue.peek()
        if head is None or len(worker.inflight) >= AHEAD_ORDERS:
            return False
        if not head.is_lazy:
            return worker.ahead_s < AHEAD_S
        if len(worker.inflight) < 2 and model.queue.requests > len(self.workers):
            return True  # one runs, and however long it takes, the next is there when it is done
        return worker.ahead_s < most_s

    def _is_kept_waiting(self, worker: WorkerState, model: ModelState) -> bool:
        """A caller waits for the next task of this model, but this worker still has work of a stream. The models behind it get nothing
        now: otherwise the worker would always have some work, and the caller would wait for ever."""
        head, holding = model.queue.peek(), worker.holds.get(model.number)
        return head is not None and not head.is_lazy and holding is not None and not holding.is_loading and worker.ahead_s >= AHEAD_S

    def by_turn(self) -> list[ModelState]:
        waiting = [model for model in self.models.values() if model.queue.waiting]
        if len(waiting) < 2:
            return waiting

        def turn(model: ModelState) -> tuple[int, float]:
            head = model.queue.peek()
            return (-(head.priority if head else 0), model.virtual_s)

        return sorted(waiting, key=turn)

    def _next_order(self, worker: WorkerState, model: ModelState, now: float) -> Order | None:
        head = model.queue.peek()
        if head is None:
            return None
        if head.rows and not head.alone and model.max_batch > 1 and self._should_wait(model, head, now):
            return None
        model.held_until = 0.0
        model.queue.pop()
        tasks = model.queue.pop_like(head, model.max_batch) if head.rows else [head]
        rows = sum(task.rows for task in tasks)
        expected = model.cost.seconds(rows) if rows else model.order_s and model.order_s * head.count
        return self.begin(worker, model, tasks, expected or UNKNOWN_S, self.next_serial())

    def _should_wait(self, model: ModelState, head: Task, now: float) -> bool:
        until = wait_until(model.queue.rows_like(head), model, head.submitted, head.deadline, now)
        if until <= now:
            return False
        model.held_until = until
        self.wake_at = until if self.wake_at is None else min(self.wake_at, until)
        return True

    def _load(self, worker: WorkerState, model: ModelState, now: float) -> list[Action]:
        """Drop the models that have to leave, then load it; no action if a model that would have to leave is in use."""
        leaving = self._leaving_for(worker, model)
        if leaving is None:
            return []
        drops: list[Action] = [self._drop(holding) for holding in leaving]
        order = Order(self.next_serial(), model, [], model.load_s, worker, is_load=True)
        worker.inflight[order.serial] = order
        worker.ahead_s += order.expected_s
        worker.holds[model.number] = Holding(model, worker, model.nbytes, last_used=now, orders=1)
        return [*drops, Load(worker, model)]

    def _leaving_for(self, worker: WorkerState, model: ModelState) -> list[Holding] | None:
        place = model.place_on(worker.device)
        return evictions(self._residents(place), model.nbytes, self.budgets.get(place))

    def _should_load(self, worker: WorkerState, model: ModelState, now: float) -> bool:
        if not model.may_run_on(worker.device) or model.broken or now < model.not_before:
            return False
        holders = self.holdings_of(model)
        if any(holding.is_loading for holding in holders) and model.replicas is None:
            return False
        if len(holders) < (model.replicas or 1):
            return True
        if model.replicas is not None:
            return False
        # One more pays if the waiting tasks would keep the present ones busy for longer than the load takes.
        backlog_s = model.queue.requests * (model.order_s or UNKNOWN_S) / max(1, model.max_batch) / len(holders)
        return backlog_s > max(model.load_s, LEAST_LOAD_S)

    def _residents(self, device: str) -> list[Holding]:
        return [holding for holding in self._holdings() if holding.model.place_on(holding.worker.device) == device]

    def _drop(self, holding: Holding) -> Drop:
        del holding.worker.holds[holding.model.number]
        return Drop(holding.worker, holding.model)


def wait_until(rows: int, model: ModelState, oldest: float, deadline: float | None, now: float) -> float:
    """When a batch of so many rows should start at the latest: at once, if waiting does not pay. Its first row came at `oldest` and has
    this `deadline`.

    Waiting for one more row saves the fixed cost b of another batch, and costs each waiting row the time until that row comes.
    """
    fit, gap_s = model.cost.fit(), model.arrivals.gap_s(now)
    if rows >= model.max_batch or not model.max_delay_s or fit is None or gap_s is None:
        return oldest
    a, b = fit
    if rows * gap_s >= b:
        return oldest
    latest = oldest + model.max_delay_s
    if deadline is not None:
        latest = min(latest, deadline - 1.5 * (a * (rows + 1) + b))
    return max(oldest, latest)


def evictions(residents: list[Holding], need: int, limit: int | None) -> list[Holding] | None:
    """The models that have to leave for `need` more bytes; None if not enough of them can leave right now."""
    if limit is None:
        return []
    over = sum(holding.nbytes for holding in residents) + need - limit
    chosen: list[Holding] = []
    for holding in sorted((holding for holding in residents if not holding.is_needed), key=lambda holding: holding.last_used):
        if over <= 0:
            break
        if holding.nbytes:
            chosen.append(holding)
            over -= holding.nbytes
    return chosen if over <= 0 else None
