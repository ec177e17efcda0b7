"""Sends workers what the scheduler has decided: orders, models to load, models to drop; and single tasks by the fast path."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate
from marshal import dumps
from typing import Any

import numpy as np

from rankwise.errors import UsageError
from rankwise.pool.memory.encoding import INLINE_BYTES, EncodedInputs, Node, Part, each_node
from rankwise.pool.memory.requests import join_nodes
from rankwise.pool.memory.shared_memory import Arena, Slot
from rankwise.pool.schedule.pool_state import PoolState
from rankwise.pool.schedule.scheduler import UNKNOWN_S
from rankwise.pool.schedule.state import Action, Load, ModelState, Order, Run, WorkerState, monotonic
from rankwise.pool.schedule.tasks import Chunk, Task, TaskFuture, TaskOwner
from rankwise.pool.schedule.tasks import Part as TaskPart
from rankwise.pool.transport.connection import BRISK_NS, POSTED, POSTED_FROM, SEND_NOW, WorkerHandle, check_is_kernels, current_cpu, send
from rankwise.sizes import bytes_text

log = logging.getLogger("rankwise.pool")
# How long a worker may hold back an answer to add more results: shortly for quick tasks; for a stream, until half of its work is done.
PROMPT_NS, LAZY_NS = 200_000, 15_000_000
_BRISK_S = BRISK_NS / 1e9
_MOST_FILES = 128  # of shared weights: a process may have 1,024 descriptors by default


class Sender:
    """All methods are called with the pool's lock held."""

    def __init__(self, state: PoolState, specs: dict[int, PlacedSpec], expect: Callable[[WorkerHandle], None]) -> None:
        self._state, self._scheduler, self._arena = state, state.scheduler, state.arena
        self._expect = expect  # called with each worker that something is sent to
        self.specs = specs  # by the model's number
        self._weights_files: dict[int, int] = {}  # by the model's number

    def act(self, actions: list[Action], now: float) -> None:
        for action in actions:
            if isinstance(action, Run):
                self._send_orders(action.worker, action.orders, now)
            elif isinstance(action, Load):
                worker, model = action
                serial = next(serial for serial, order in worker.inflight.items() if order.is_load and order.model is model)
                fds = self._weights_file(worker, model)
                self._send(worker, ("load", serial, model.number, self.specs[model.number].place, bool(fds)), fds, must=True)
            else:
                worker, model = action
                self._state.counters.of(model.name).evictions += 1
                log.info("model %r leaves worker %d", model.name, worker.number)
                self._send(worker, ("drop", model.number), must=True)
                if not self._scheduler.holdings_of(model):
                    self._close_weights_file(model)

    def _weights_file(self, worker: WorkerState, model: ModelState) -> tuple[int, ...]:
        """A descriptor of the file in memory by which replicas on the CPU share their weights; none if there can be only one replica. The
        first replica gets an empty file."""
        if model.place_on(worker.device) != "cpu" or model.replicas == 1 or len(self._scheduler.workers) < 2:
            return ()
        if all(holding.worker is worker for holding in self._scheduler.holdings_of(model)):
            self._close_weights_file(model)
            if len(self._weights_files) < _MOST_FILES:
                with suppress(OSError):  # no more descriptors
                    self._weights_files[model.number] = os.memfd_create("rankwise-weights", os.MFD_CLOEXEC)
        fd = self._weights_files.get(model.number)
        return () if fd is None else (fd,)

    def forget(self, model: ModelState) -> None:
        """The model was removed, and no worker holds it."""
        del self.specs[model.number]
        self._close_weights_file(model)

    def _close_weights_file(self, model: ModelState) -> None:
        """Close our descriptor; workers that have mapped the file keep it."""
        fd = self._weights_files.pop(model.number, None)
        if fd is not None:
            os.close(fd)

    def close(self) -> None:
        while self._weights_files:
            os.close(self._weights_files.popitem()[1])

    def _send_orders(self, worker: WorkerState, orders: list[Order], now: float) -> None:
        items = []
        for order in orders:
            order.tasks = [task for task in order.tasks if self._state.begins(task, now)]
            if order.tasks:
                items.append((order.serial, order.model.number, self._parts_of(order)))
                continue
            del worker.inflight[order.serial]
            self._scheduler.take_back(worker, order, now)
        is_lazy = all(task.is_lazy for order in orders for task in order.tasks)
        patience_ns = max(PROMPT_NS, min(LAZY_NS, int(worker.ahead_s * 5e8))) if is_lazy else PROMPT_NS
        if items and not self._send(worker, ("run", items, patience_ns)):
            for order in reversed([order for order in orders if order.serial in worker.inflight]):
                del worker.inflight[order.serial]
                self._scheduler.take_back(worker, order, now)
                self._scheduler.add_again(order.tasks)

    def _parts_of(self, order: Order) -> list[Part] | tuple[Any, ...]:
        try:
            return parts_of(order, self._arena)
        except LaneFull:  # the caller may keep the lane full for as long as it likes; what fits a packet needs no lane
            fit = max(1, sum([size <= _ORDER_BYTES for size in accumulate([task.size for task in order.tasks])]))
            self._scheduler.add_again(order.tasks[fit:])
            del order.tasks[fit:]
            order.is_joined, order.carrier = False, None
            return parts_of(order, self._arena)

    def _send(self, worker: WorkerState, message: tuple[Any, ...], fds: tuple[int, ...] = (), must: bool = False) -> bool:
        """False if the worker's socket is full. True for a worker that is gone: when that is noticed, its orders run again."""
        handle: WorkerHandle = worker.handle
        self._expect(handle)
        try:
            while handle.known_segments < len(self._arena.segments):
                segment = self._arena.segments[handle.known_segments]
                if not send(handle.sock, ("segment", segment.size), (segment.fd,), wait=must):
                    return False
                handle.known_segments += 1
            is_sent = send(handle.sock, message, fds, wait=must)
            handle.page.words[POSTED] = 0
            return is_sent
        except OSError as error:
            check_is_kernels(error)
            if error.errno == errno.EMSGSIZE:  # the worker never gets it, so no answer will come
                self._state.give_up("a packet was larger than a socket takes, which is a fault of rankwise")
            return True


_ORDER_BYTES = 50_000  # of one order; with AHEAD_BYTES before it, a packet stays below MAX_BYTES
_SMALL = 256  # an array of at most so many bytes stays in the packet


class PlacedSpec:
    """A model's spec where workers find it: in the message, or in the arena, once for all of them, for as long as this object lives."""

    _slot: Slot | None = None

    def __init__(self, spec: bytes, arena: Arena) -> None:
        self._arena = arena
        self.place: Any = spec
        if len(spec) <= INLINE_BYTES:
            return
        self._slot = slot = arena.write(np.frombuffer(spec, np.uint8))
        if slot is None:
            raise UsageError(
                f"a model's build takes {bytes_text(len(spec))} as it is sent to the workers, more than there is room for on the lane",
                why="what the callable carries along is part of it",
                next=("load weights inside the build, or give them as weights=…", "a larger lane_bytes="),
            )
        self.place = slot.segment, slot.offset, len(spec)

    def __del__(self) -> None:
        if self._slot is not None:
            self._arena.drop(self._slot)


class LaneFull(Exception):
    """The lane has no room for the rows of an order right now."""


class Carrier(Task):
    """The rows of many tasks in one piece on the lane, for as long as their order lasts, however it ends."""

    def __init__(self, first: Task, node: Node, arena: Arena) -> None:
        super().__init__(first.model, (node, 0, (), first.to_tensor), first.submitted)
        self._arena = arena

    def __del__(self) -> None:
        for slot in self.slots:
            self._arena.drop(slot)


def parts_of(order: Order, arena: Arena) -> list[Part] | tuple[Any, ...]:
    """The tasks of an order, one by one, or small ones as one; what is too large for the packet goes to the lane. Raises LaneFull."""
    tasks = order.tasks
    if isinstance(tasks[0], Chunk):
        return tasks[0].payload()
    size = sum([task.size for task in tasks])
    if len(tasks) > 1 and not any(task.slots or task.deadline is not None for task in tasks):
        order.is_joined = True
        node = join_nodes([task.node for task in tasks])
        if size > _ORDER_BYTES:
            order.carrier = Carrier(tasks[0], node, arena)
            _to_lane(order.carrier, arena)
            node = order.carrier.node
        return [(sum([task.rows for task in tasks]), node, None, None)]
    if size > _ORDER_BYTES:
        for task in tasks:
            _to_lane(task, arena)
    is_batched = order.model.max_batch > 1
    return [
        (task.rows if isinstance(task, TaskPart) or (is_batched and not task.alone) else 0, task.node, task.deadline, task.seed)
        for task in tasks
    ]


def _to_lane(task: Task, arena: Arena) -> None:
    slots: list[Slot] = []

    def moved(leaf: Node) -> Node:
        if leaf[0] not in ("T", "N", "P", "R", "S") or type(leaf[-1]) is not bytes or len(leaf[-1]) <= _SMALL:
            return leaf
        slot = arena.write(np.frombuffer(leaf[-1], np.uint8))
        if slot is None:
            raise LaneFull
        slots.append(slot)
        return (*leaf[:-1], (slot.segment, slot.offset, len(leaf[-1])))

    try:
        task.node = each_node(task.node, moved)
    except LaneFull:
        for slot in slots:
            arena.drop(slot)
        raise
    task.slots = (*task.slots, *slots)
    task.size = min(task.size, 100)


class FastPath:
    """Sends a single task in the quickest way, if no other task waits for the model, a worker that holds it is idle, and the caller fetches
    the result itself. Exists only for speed: a process that has just been woken runs Python several times slower than one that is warm, so
    what counts is how little is done between the caller and the worker. The packet is sent as early as possible; the bookkeeping is done
    while the worker is busy."""

    def __init__(self, state: PoolState, owner: TaskOwner, expect: Callable[[WorkerHandle], None]) -> None:
        self._state, self._owner, self._expect = state, owner, expect
        self._lock, self._scheduler, self._arena = state.lock, state.scheduler, state.arena

    def send(self, model: ModelState, encoded: EncodedInputs, rows: int, key: Any) -> TaskFuture | None:
        """Send a task at once; None if it has to queue. `rows` (one at most) and `key` say which tasks it could share a batch with."""
        state, scheduler = self._state, self._scheduler
        with self._lock:
            worker = scheduler.idle_holder(model)
            if worker is None or state.is_closing or (rows and not scheduler.is_best_alone(model, monotonic())):
                return None
            handle: WorkerHandle = worker.handle
            if handle.known_segments < len(self._arena.segments):  # the usual path sends it the new segments
                return None
            scheduler.serial = serial = scheduler.serial + 1
            try:
                handle.send(dumps(("one", serial, model.number, encoded[0]), 2), SEND_NOW)
            except BlockingIOError:
                return None
            except OSError as error:  # the worker is gone; when that is noticed, its tasks run again
                check_is_kernels(error)
            words = handle.page.words
            words[POSTED_FROM] = current_cpu()
            words[POSTED] = serial
            task = TaskFuture(model, encoded, monotonic(), self._owner)
            if model.order_s is not None and model.order_s < _BRISK_S:
                task.brisk = serial
            if rows:
                task.rows, task.key = rows, (task.to_tensor, key)
            task.begin()
            task.has_begun = True
            scheduler.begin(worker, model, [task], model.order_s or UNKNOWN_S, serial)
            self._expect(handle)
            return task

    def finish(self, worker: WorkerState, message: tuple[Any, ...]) -> bool:
        """Take the answer to the one order that a worker had, if all is as usual; False if `take_message` has to handle it."""
        _, serial, nanoseconds, ok, node, flags = message
        state, scheduler, now = self._state, self._scheduler, monotonic()
        with self._lock:
            order = worker.inflight.get(serial)
            if order is None or flags or not ok or order.tasks[0].is_over:
                return False
            task: Any = order.tasks[0]
            try:
                value = worker.handle.reader.value(task, node)
            except Exception:  # the result cannot be read here
                return False
            if task.slots:
                state.let_go(task)
            is_watched = not task.finish(value)
            del worker.inflight[serial]
            scheduler.take_back(worker, order, now)
            model = order.model
            model.ran(task.rows, nanoseconds / 1e9)
            model.counted.did_one(now - task.submitted, nanoseconds)
            is_all = not state.is_closing and not scheduler.has_waiting
        if is_watched:
            task.announce()
        if not is_all:
            self._owner.go_on(now)
        return True
