"""The engine `ray`: queues tasks here, sends them to actors many at once, and settles each future once, whatever becomes of the actors.

One lock guards all state. Futures are settled after it is released, because their callbacks may submit again.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import numpy as np

from rankwise.errors import UsageError
from rankwise.pool.api.model import Model
from rankwise.pool.backend import PoolOptions, Requests, states_of
from rankwise.pool.errors import ModelUnavailable, deadline_exceeded, killed_actors, no_worker, pool_closed, pool_full
from rankwise.pool.memory.encoding import NUMPY, described, torch_module
from rankwise.pool.ray import cluster, encoding
from rankwise.pool.ray.actor import ActorSpec
from rankwise.pool.ray.handles import ActorHandle, ActorSet
from rankwise.pool.ray.placement import Placement, fixed_placements, node_placements, spread_replicas
from rankwise.pool.ray.stats import cluster_stats
from rankwise.pool.ray.streams import in_order
from rankwise.pool.schedule.state import Deadlines, ModelState, Plan, Seat, any_seed, derived
from rankwise.pool.schedule.tasks import TaskFuture
from rankwise.pool.stats import Counters

log = logging.getLogger("rankwise.pool")
AHEAD_S = 0.05  # work that an actor has been given: enough that it need not wait for us, little enough to be done again elsewhere
MOST_AHEAD = 4000  # tasks
QUANTUM = 64  # tasks of one model before the others get their turn
MAX_KILLS = 3  # actors that may die while they run nothing but this input


def start(models: dict[str, Model], options: PoolOptions) -> RayEngine:
    _check_options(models, options)
    is_ours = cluster.connect(options.address)
    try:
        gpus = cluster.all_gpus()
        states = states_of(models, ("0",) if gpus else ())
        wants_gpu = any(state.device == "cuda" for state in states.values())
        seed = any_seed() if options.seed is None else options.seed
        specs = {state.number: models[name].spec(name, state.device, derived(seed, "model", name)) for name, state in states.items()}
        below = replace(options, max_queue=1 << 40, seed=None, address=None)  # the queue is here, and has its limit here
        spec = ActorSpec(states_of(models, ("0",) if gpus else ()), specs, below, 1, 1, False, seed)
        return RayEngine(states, spec, options, wants_gpu, is_ours)
    except BaseException:
        if is_ours:
            cluster.disconnect()
        raise


class RayEngine:
    """A `Backend` of Ray actors."""

    def __init__(self, models: dict[str, ModelState], spec: ActorSpec, options: PoolOptions, wants_gpu: bool, is_ours: bool) -> None:
        self.models, self._options, self._wants_gpu, self._is_ours = models, options, wants_gpu, is_ours
        self._states = list(models.values())
        self.counters = Counters(list(models))
        self.lock = threading.Lock()
        self._changed = threading.Condition(self.lock)  # a task is over, or a deadline may have come nearer
        self.is_closing = self.is_closed = False
        self._deadlines = Deadlines()
        self._settled: list[tuple[TaskFuture | Future[None], bool, Any]] = []
        self._serial = 0
        self._loads: dict[int, tuple[ActorHandle, ModelState]] = {}  # by serial
        self._held: dict[int, dict[int, int]] = {state.number: {} for state in self._states if state.replicas is not None}
        self._store = cluster.ray_module().put
        self.actors = ActorSet(self, spec)
        first = self._placements_wanted()
        seats = [Seat("cuda" if placement.gpus else "cpu", placement.threads) for placement in first for _ in range(placement.workers)]
        self.plan = Plan(seats, f"{len(seats)} workers in {len(first)} actors of a Ray cluster")
        for placement in first:
            self.actors.start(placement)
        self._threads = [threading.Thread(target=act, name=name, daemon=True) for act, name in self._spec]
        for thread in self._threads:
            thread.start()

    # ---- for callers, from any thread

    def submit(self, model: ModelState, inputs: tuple[Any, ...], deadline_s: float | None, priority: int, seed: int | None) -> Future[Any]:
        if self.is_closing:
            raise pool_closed()
        now = time.monotonic()
        task = TaskFuture(model, encoding.encode(model.name, inputs, self._store), now, self)  # type: ignore[arg-type]
        task.priority, task.seed = priority, seed
        if deadline_s is not None:
            task.deadline = now + deadline_s
        with self.lock:
            if self.is_closing or model.broken is not None or model.queue.waiting >= self._options.max_queue:
                self._refuse(model)
            model.queue.push(task)
            if task.deadline is not None:
                self._deadlines.add(task.deadline, task)
                self._changed.notify_all()
            self.plan_more()
        self.settle()
        return task

    def stream(
        self, requests: Requests, window: int | None, deadline_s: float | None, priority: int, seed: int | None, length: int
    ) -> Iterator[Any]:
        submit = partial(self.submit, deadline_s=deadline_s, priority=priority)
        return in_order(submit, requests, window, seed, self.has_open_tasks)

    def load(self, model: ModelState) -> Future[None]:
        future: Future[None] = Future()
        with self.lock:
            if self.is_closing:
                raise pool_closed()
            model.broken = None
            for actor in self.actors.all:
                actor.cannot.pop(model.number, None)
            model.awaiting_load.append(future)
            self.plan_more()
        self.settle()
        return future

    def unload(self, model: ModelState) -> None:
        with self.lock:
            for actor in self.actors.ready:
                actor.cannot.pop(model.number, None)
                actor.unload(model.number)

    def empty(self, shape: tuple[int, ...], dtype: str, as_tensor: bool) -> Any:
        """Ordinary memory: what is large is copied to the object store at `submit`, once for all nodes."""
        if self.is_closing:
            raise pool_closed()
        torch = torch_module() if as_tensor else None
        return np.empty(shape, NUMPY[dtype]) if torch is None else torch.empty(shape, dtype=getattr(torch, dtype))

    def stats(self) -> dict[str, Any]:
        with self.lock:
            return cluster_stats(self._states, self.actors, self.counters, self.plan.why)

    def has_open_tasks(self) -> bool:
        with self.lock:
            return self._has_open_tasks()

    def close(self, cancel: bool, timeout: float | None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        with self.lock:
            if self.is_closed:
                return
            self.is_closing = True
            if cancel:
                self._fail_waiting()
        self.settle()
        with self.lock:
            while self._has_open_tasks() and (end is None or time.monotonic() < end):
                self._changed.wait(0.1 if end is None else max(0.0, min(0.1, end - time.monotonic())))
            self.is_closed = True
            self._fail_waiting()
            for actor in self.actors.all:
                for task in list(actor.inflight.values()):
                    self.fail(task, pool_closed())
            self._changed.notify_all()
        self.settle()
        self.actors.close()
        for thread in self._threads:
            thread.join(timeout=5)
        if self._is_ours:
            cluster.disconnect()

    def forget_after_fork(self) -> None:
        """The connection is the parent's."""
        self.is_closing = self.is_closed = True

    # ---- for TaskFuture

    def help(self, task: TaskFuture, timeout: float | None) -> float | None:
        """Nothing a caller could do: the answers come to another thread."""
        return timeout

    def withdraw(self, task: TaskFuture) -> None:
        """Its future is about to be cancelled: if it has not been sent, it never will be."""
        with self.lock:
            if not task.is_over and not task.has_begun:
                task.model.queue.forget(task)
                self.counters.of(task.model.name).cancelled += 1
                task.end()
                self._changed.notify_all()

    # ---- for the actors' threads

    def arrived(self, actor: ActorHandle) -> None:
        """An actor is there and can be given something to do."""
        with self.lock:
            actor.is_ready = not self.is_closed
            self._spread_replicas()
            self.plan_more()
        self.settle()

    def take(self, actor: ActorHandle, answers: list[tuple[int, bool, Any]], arrays: Any, seconds: list[tuple[int, float]]) -> None:
        with self.lock:
            for state, (tasks, busy_s) in zip(self._states, seconds):
                if tasks:
                    state.ran(0, busy_s / tasks)
                    self.counters.of(state.name).ran(tasks, 0, busy_s)
            loads = [(number, ok, payload) for number, ok, payload in answers if number in self._loads]
            answered = [(number, actor.inflight[number], ok, payload) for number, ok, payload in answers if number in actor.inflight]
        found = [(number, task, *self._read(task, ok, payload, arrays)) for number, task, ok, payload in answered]
        now = time.monotonic()
        with self.lock:
            for number, ok, payload in loads:
                self._take_load(number, None if ok else encoding.decode_error(payload, self._loads[number][1].name))
            for number, task, ok, value in found:
                del actor.inflight[number]
                if not task.is_over:
                    self._take_one(actor, task, ok, value, now)
            self.plan_more()
            self._changed.notify_all()
        self.settle()

    def lost(self, actor: ActorHandle, why: str, is_its_own: bool) -> None:
        """It is gone, with all that it was given. `is_its_own`: its process has died, on a node that lives."""
        with self.lock:
            was_ready, actor.is_ready = actor.is_ready, False
            orphans = [task for task in actor.inflight.values() if not task.is_over]
            actor.inflight = {}
            self._loads = {number: entry for number, entry in self._loads.items() if entry[0] is not actor}
            self.actors.remove(actor, was_ready, why)
            if not self.is_closed:
                self._run_again(orphans, why, is_its_own)
                self._spread_replicas()
                self.plan_more()
            self._changed.notify_all()
        self.settle()

    def settle(self) -> None:
        while self._settled:
            with self.lock:
                settled, self._settled = self._settled, []
            for future, ok, value in settled:
                try:
                    if ok:
                        future.set_result(value)
                    elif future.running() or future.set_running_or_notify_cancel():
                        future.set_exception(value)
                except Exception:
                    log.exception("a future could not be settled")

    # ---- the lock is held from here on

    def plan_more(self) -> None:
        """Each worker something to do first, then enough that none waits for us."""
        ready = [actor for actor in self.actors.ready if actor.may_be_sent]
        if not ready:
            return
        if any(state.queue.waiting for state in self._states):
            for is_ahead in (False, True):
                for actor in sorted(ready, key=lambda actor: len(actor.inflight) / actor.placement.workers):
                    self._fill(actor, is_ahead)
        for state in self._states:
            if state.awaiting_load and not any(model is state for _, model in self._loads.values()):
                self._load_wanted(state)
        for actor in ready:
            actor.flush(time.monotonic())

    def fail(self, task: TaskFuture, error: BaseException) -> None:
        self.counters.of(task.model.name).failed += 1
        self._conclude(task, False, error)

    def break_all(self, why: str) -> None:
        for model in self._states:
            self._break(model, no_worker(why))

    def _fill(self, actor: ActorHandle, is_ahead: bool) -> None:
        now, progress = time.monotonic(), True
        while progress and not actor.is_exclusive:
            progress = False
            for model in self._by_turn():
                if self._can_run(actor, model):
                    progress |= self._give(actor, model, _most(actor, model, is_ahead), now)

    def _give(self, actor: ActorHandle, model: ModelState, most: int, now: float) -> bool:
        """Some tasks of this model; one that was with an actor that died gets an actor to itself."""
        given = 0
        while given < QUANTUM and len(actor.inflight) < most and not actor.is_exclusive:
            task = model.queue.peek()
            if task is None or (task.alone and actor.inflight):
                break
            model.queue.pop()
            if not self._begins(task, now):
                continue
            self._serial += 1
            actor.add(self._serial, task)  # type: ignore[arg-type]
            model.virtual_s += model.order_s or 0.001
            given += 1
        return bool(given)

    def _begins(self, task: Any, now: float) -> bool:
        if task.deadline is not None and now >= task.deadline:
            self._expire(task)
            return False
        if not task.has_begun:
            task.has_begun = task.begin()
        return True

    def _by_turn(self) -> list[ModelState]:
        def turn(model: ModelState) -> tuple[int, float]:
            head = model.queue.peek()
            return (-(head.priority if head else 0), model.virtual_s)

        return sorted([model for model in self._states if model.queue.waiting], key=turn)

    def _can_run(self, actor: ActorHandle, model: ModelState) -> bool:
        if model.number in actor.cannot or (model.device == "cuda" and not actor.placement.gpus):
            return False
        return model.number not in self._held or actor.number in self._held[model.number]

    def _spread_replicas(self) -> None:
        for model in self._states:
            if model.replicas is None:
                continue
            able = {actor.number: actor for actor in self.actors.ready if model.device != "cuda" or actor.placement.gpus}
            before = self._held[model.number]
            held = spread_replicas(model.replicas, before, {number: actor.placement.workers for number, actor in able.items()})
            for number, count in held.items():
                if before.get(number) != count:
                    able[number].hold(model.number, count)
            self._held[model.number] = held

    def _load_wanted(self, model: ModelState) -> None:
        able = [actor for actor in self.actors.ready if self._can_run(actor, model)]
        for actor in able if model.replicas is not None else able[:1]:
            self._serial += 1
            self._loads[self._serial] = (actor, model)
            actor.load(self._serial, model.number)

    def _take_load(self, number: int, error: BaseException | None) -> None:
        actor, model = self._loads.pop(number)
        if error is not None:
            self._cannot(actor, model, error)
        if error is None and not any(other is model for _, other in self._loads.values()):
            self._settled += [(future, True, None) for future in model.awaiting_load]
            model.awaiting_load = []

    def _take_one(self, actor: ActorHandle, task: TaskFuture, ok: bool, value: Any, now: float) -> None:
        if isinstance(value, ModelUnavailable) and not ok:
            task.model.queue.push(task, front=True)
            self._cannot(actor, task.model, value)
            return
        counted = self.counters.of(task.model.name)
        counted.took(now - task.submitted)
        if ok:
            counted.completed += 1
        else:
            counted.failed += 1
            counted.quarantined += getattr(getattr(value, "finding", None), "code", "") == "RW804"
        self._conclude(task, ok, value)

    def _cannot(self, actor: ActorHandle, model: ModelState, error: BaseException) -> None:
        """This node cannot build it: a file may be missing there. Where none can, that is the model's end."""
        error.add_note(f"rankwise: on node {actor.host}")
        actor.cannot[model.number] = error
        if not any(self._can_run(other, model) for other in self.actors.ready):
            self._break(model, error)

    def _run_again(self, orphans: list[TaskFuture], why: str, is_its_own: bool) -> None:
        """Where its process died, each of these may have done it: from now on they run by themselves, until it is clear which one."""
        for task in reversed(orphans):
            if is_its_own:
                task.hits += len(orphans) == 1
                task.alone = True
                if task.hits >= MAX_KILLS:
                    self.counters.of(task.model.name).quarantined += 1
                    self.fail(task, killed_actors(task.model.name, described(task.node), task.hits, why))
                    continue
            self.counters.of(task.model.name).rerun += 1
            if self.is_closing and not self.actors.all:
                self.fail(task, pool_closed())
            else:
                task.model.queue.push(task, front=True)

    def _refuse(self, model: ModelState) -> NoReturn:
        if self.is_closing:
            raise pool_closed()
        if model.broken is not None:
            raise model.broken
        self.counters.of(model.name).rejected += 1
        raise pool_full(model.name, model.queue.waiting, "tasks")

    def _break(self, model: ModelState, error: BaseException) -> None:
        model.broken = error
        self._settled += [(future, False, error) for future in model.awaiting_load]
        model.awaiting_load = []
        for task in model.queue.all():
            model.queue.forget(task)
            self.fail(task, error)  # type: ignore[arg-type]

    def _expire(self, task: Any) -> None:
        if task.is_over or task.deadline is None:
            return
        was_sent = not task.is_queued and task.has_begun
        task.model.queue.forget(task)
        self.counters.of(task.model.name).expired += 1
        self.fail(task, deadline_exceeded(task.model.name, task.deadline - task.submitted, was_sent))

    def _conclude(self, task: TaskFuture, ok: bool, value: Any) -> None:
        task.end()
        self._settled.append((task, ok, value))

    def _fail_waiting(self) -> None:
        for model in self._states:
            self._settled += [(future, False, pool_closed()) for future in model.awaiting_load]
            model.awaiting_load = []
            for task in model.queue.all():
                model.queue.forget(task)
                self.fail(task, pool_closed())  # type: ignore[arg-type]

    def _has_open_tasks(self) -> bool:
        if any(state.queue.waiting for state in self._states):
            return True
        return any(not task.is_over for actor in self.actors.all for task in actor.inflight.values())

    # ---- without it

    def _read(self, task: TaskFuture, ok: bool, payload: Any, arrays: Any) -> tuple[bool, Any]:
        try:
            return ok, encoding.decode_value(payload, arrays, task.to_tensor) if ok else encoding.decode_error(payload, task.model.name)
        except Exception as error:  # a result that cannot be had here: a class that cannot be imported, say
            return False, error

    @property
    def _spec(self) -> tuple[Any, ...]:
        return (self._watch_deadlines, "rankwise-ray-time"), (self._watch_nodes, "rankwise-ray-nodes")

    def _watch_deadlines(self) -> None:
        while not self.is_closed:
            with self.lock:
                now = time.monotonic()
                for task in self._deadlines.passed(now):
                    self._expire(task)
                if not self._settled:
                    soonest = self._deadlines.next()
                    self._changed.wait(1.0 if soonest is None else max(0.0, min(1.0, soonest - now)))
            self.settle()

    def _watch_nodes(self) -> None:
        """Somebody for each placement that is vacant, and for each node that has joined."""
        while not self.actors.stopped.wait(0.5):
            try:
                wanted = self._placements_wanted()
            except Exception as error:  # the cluster's head does not answer; what runs goes on
                log.warning("the Ray cluster does not tell its nodes: %s", error)
                continue
            with self.lock:
                if not self.is_closed:
                    for placement in wanted:
                        self.actors.start(placement)
            self.actors.look_at_calls()

    def _placements_wanted(self) -> list[Placement]:
        options = self._options
        if isinstance(options.workers, int):
            return fixed_placements(self.actors.vacant(options.workers), options.threads, self._wants_gpu)
        taken = self.actors.nodes_in_use()
        nodes = cluster.nodes()
        placements = node_placements(nodes, taken, options.threads, self._wants_gpu)
        if self._wants_gpu and any(state.device == "cpu" for state in self._states):
            without = [node for node in nodes if not node.gpus]
            placements += node_placements(without, taken, options.threads, wants_gpu=False)
        return placements


def _most(actor: ActorHandle, model: ModelState, is_ahead: bool) -> int:
    """Tasks that may be with this actor, so that the next one of the model is sent as well."""
    least = actor.placement.workers * model.max_batch
    if not is_ahead:
        return least
    known = math.ceil(AHEAD_S / model.order_s) if model.order_s else 0
    return min(MOST_AHEAD, max(2 * least, actor.placement.workers * known))


def _check_options(models: dict[str, Model], options: PoolOptions) -> None:
    if options.workers == 0:
        raise UsageError('workers=0 runs models in this process, and engine="ray" does not', next=('leave out engine="ray"',))
    if options.pin:
        raise UsageError('pin=True does nothing under engine="ray"', why="Ray gives actors a number of cores, and no core by name")
    if options.address is not None and options.address.startswith("ray://"):
        raise UsageError(
            "Ray Client (ray://…) is not supported",
            why="it has no object store on this machine, and its calls go through one process of the cluster",
            next=("run the program on a machine of the cluster", "or submit it as a job: ray job submit -- python script.py"),
        )
    for name, model in models.items():
        if ":" in model.device:
            raise UsageError(
                f"model {name!r} wants {model.device}, but under Ray which GPU an actor gets is Ray's to say", next=('device="cuda"',)
            )
