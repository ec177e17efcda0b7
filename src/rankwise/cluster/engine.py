"""The engine `ray`: queues tasks here, sends many at once to actors, and settles each future once, whatever happens to the actors."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np

from rankwise.cluster import membership
from rankwise.cluster.actors import ActorHandle, ActorScheduler, ActorSet, cluster_stats
from rankwise.cluster.node import ActorSpec, decode_error, decode_value, encode
from rankwise.cluster.placement import Placement, Resources, check_placeable, fixed_placements, node_placements
from rankwise.errors import UsageError
from rankwise.pool.api.model import Model
from rankwise.pool.api.streams import Stream, StreamOptions
from rankwise.pool.backend import PoolOptions, Requests, states_of
from rankwise.pool.errors import ModelUnavailable, killed_actors, pool_closed
from rankwise.pool.memory.encoding import NUMPY, described, torch_module
from rankwise.pool.schedule.pool_state import PoolState, Settings
from rankwise.pool.schedule.state import ModelState, PoolPlan, Seat, any_seed, derived, seed_of
from rankwise.pool.schedule.tasks import Task, TaskFuture

log = logging.getLogger("rankwise.pool")
MAX_KILLS = 3  # actors that may die while they run only this input
_WINDOW = 4096  # requests of a stream that are under way, if the caller gave no window


def start(models: dict[str, Model], options: PoolOptions) -> RayEngine:
    _check_options(models, options)
    is_ours = membership.connect(options.address)
    try:
        nodes = membership.nodes()
        gpus = ("any",) if any(node.all.gpus for node in nodes) or any(model.device == "cuda" for model in models.values()) else ()
        states = states_of(models, gpus)
        needs = {name: _need(state, options) for name, state in states.items()}
        if unplaced := check_placeable(needs, nodes, options.workers):
            log.warning("%s; tasks wait for one that joins", unplaced)
        seed = any_seed() if options.seed is None else options.seed
        specs = {state.number: models[name].spec(name, state.device, derived(seed, "model", name)) for name, state in states.items()}
        below = replace(options, max_queue=1 << 40, seed=None, address=None)  # no limit below: the queue is here, and so is its limit
        spec = ActorSpec(states_of(models, gpus), specs, below, seed, Placement(Resources(), 1, 1))
        return RayEngine(states, needs, spec, options, is_ours)
    except BaseException:
        if is_ours:
            membership.disconnect()
        raise


class RayState(PoolState):
    """The state of a pool whose tasks are with actors instead of workers, and hold memory of Ray's object store."""

    actors: ActorSet

    def let_go(self, task: Task) -> None:
        task.slots = ()

    def _running(self) -> list[Task]:
        return [task for actor in self.actors.all for task in actor.inflight.values() if not task.is_over]


class RayEngine:
    """A `Backend` of Ray actors."""

    def __init__(
        self, models: dict[str, ModelState], needs: dict[str, Resources], spec: ActorSpec, options: PoolOptions, is_ours: bool
    ) -> None:
        self.models, self._needs, self._options, self._is_ours = models, list(needs.values()), options, is_ours
        self._models = list(models.values())
        self.plan = PoolPlan([], "")
        self.state = state = RayState(self._models, Settings(options.max_queue, 0, 0, None, self.plan, {}, spec.seed))
        self.counters, self._lock, self._changed = state.counters, state.lock, state.all_done
        self.withdraw, self.has_open_tasks = state.withdraw, state.has_open_tasks
        self._loads: dict[int, tuple[ActorHandle, ModelState]] = {}  # by serial
        self._store = membership.ray_module().put
        self.actors = state.actors = ActorSet(self, spec)
        self._actor_scheduler = ActorScheduler(state, needs, self.actors)
        first = self._placements_wanted()
        seats = [
            Seat("cuda" if placement.share.gpus else "cpu", placement.threads) for placement in first for _ in range(placement.workers)
        ]
        self.plan = PoolPlan(seats, f"{len(seats)} workers in {len(first)} actors of a Ray cluster")
        for placement in first:
            self.actors.start(placement)
        watches = {"rankwise-ray-time": self._watch_deadlines, "rankwise-ray-nodes": self._watch_nodes}
        self._threads = [threading.Thread(target=watch, name=name, daemon=True) for name, watch in watches.items()]
        for thread in self._threads:
            thread.start()

    @property
    def is_closed(self) -> bool:
        return self.state.is_closed

    # ---- for callers, from any thread

    def submit(self, model: ModelState, inputs: tuple[Any, ...], deadline_s: float | None, priority: int, seed: int | None) -> Future[Any]:
        state, now = self.state, time.monotonic()
        if state.is_closing:
            raise state.closed()
        task = TaskFuture(model, encode(model.name, inputs, self._store), now, self)  # type: ignore[arg-type]
        task.priority, task.seed = priority, seed
        if deadline_s is not None:
            task.deadline = now + deadline_s
        with self._lock:
            if state.is_closing or model.broken is not None or model.queue.waiting >= self._options.max_queue:
                state.refuse(task)
            model.queue.push(task)
            if task.deadline is not None:
                state.deadlines.add(task.deadline, task)
                self._changed.notify_all()
            self._plan_more()
        state.settle()
        return task

    def stream(self, requests: Requests, options: StreamOptions) -> Iterator[Any]:
        def submit(number: int, model: ModelState, inputs: Any) -> Future[Any]:
            return self.submit(model, tuple(inputs), options.deadline_s, options.priority, seed_of(options.seed, number))

        numbered = ((number, *request) for number, request in enumerate(requests))
        return Stream(submit, self.has_open_tasks, options.window or _WINDOW).results(numbered)

    def load(self, model: ModelState) -> Future[None]:
        future: Future[None] = Future()
        with self._lock:
            if self.state.is_closing:
                raise self.state.closed()
            model.broken = None
            for actor in self.actors.all:
                actor.cannot.pop(model.number, None)
            model.awaiting_load.append(future)
            self._plan_more()
        self.state.settle()
        return future

    def unload(self, model: ModelState) -> None:
        with self._lock:
            for actor in self.actors.ready:
                actor.cannot.pop(model.number, None)
                actor.handle.unload.remote(model.number)

    def empty(self, shape: tuple[int, ...], dtype: str, as_tensor: bool) -> Any:
        """An array in ordinary memory; `submit` copies large arrays to the object store, once for all nodes."""
        if self.state.is_closing:
            raise self.state.closed()
        torch = torch_module() if as_tensor else None
        return np.empty(shape, NUMPY[dtype]) if torch is None else torch.empty(shape, dtype=getattr(torch, dtype))

    def stats(self) -> dict[str, Any]:
        shown = self.state.snapshot()
        with self._lock:
            return cluster_stats(shown, self.actors, self.plan.why)

    def can_wait_here(self) -> bool:
        """Not in a callback, whose thread reads what everybody waits for."""
        return not threading.current_thread().name.startswith("rankwise-ray")

    def close(self, cancel: bool, timeout: float | None) -> None:
        if self.is_closed:
            return
        self.state.close(cancel, timeout)
        self.actors.close()
        for thread in self._threads:
            thread.join(timeout=5)
        if self._is_ours:
            membership.disconnect()

    def forget_after_fork(self) -> None:
        """The connection is the parent's, so only the state is marked."""
        self.state.forget_after_fork()

    # ---- for TaskFuture

    def help(self, task: TaskFuture, timeout: float | None) -> float | None:
        """Does nothing: a caller cannot help, because the answers come to another thread."""
        return timeout

    # ---- for the actors' threads

    def arrived(self, actor: ActorHandle) -> None:
        """An actor has started and can be given tasks."""
        with self._lock:
            actor.is_ready = not self.is_closed
            self._actor_scheduler.spread_replicas()
            self._plan_more()
        self.state.settle()

    def take(self, actor: ActorHandle, answers: list[tuple[int, bool, Any]], arrays: Any, seconds: list[tuple[int, float]]) -> None:
        with self._lock:
            for state, (tasks, busy_s) in zip(self._models, seconds):
                if tasks:
                    state.ran(0, busy_s / tasks)
                    state.counted.ran(tasks, 0, busy_s)
            loads = [(number, ok, payload) for number, ok, payload in answers if number in self._loads]
            answered = [(number, actor.inflight[number], ok, payload) for number, ok, payload in answers if number in actor.inflight]
        found = [(number, task, *self._read(task, ok, payload, arrays)) for number, task, ok, payload in answered]
        now = time.monotonic()
        with self._lock:
            for number, ok, payload in loads:
                self._take_load(number, None if ok else decode_error(payload, self._loads[number][1].name))
            for number, task, ok, value in found:
                del actor.inflight[number]
                if not task.is_over:
                    self._take_one(actor, task, ok, value, now)
            self._plan_more()
            self._changed.notify_all()
        self.state.settle()

    def lost(self, actor: ActorHandle, why: str, is_its_own: bool) -> None:
        """The actor is gone, with all that it was given. `is_its_own`: its process died, while its node lives."""
        with self._lock:
            was_ready, actor.is_ready = actor.is_ready, False
            orphans = [task for task in actor.inflight.values() if not task.is_over]
            actor.inflight = {}
            self._loads = {number: entry for number, entry in self._loads.items() if entry[0] is not actor}
            self.actors.remove(actor, was_ready, why)
            if not self.is_closed:
                self._run_again(orphans, why, is_its_own)
                self._actor_scheduler.spread_replicas()
                self._plan_more()
            self._changed.notify_all()
        self.state.settle()

    # ---- the lock is held from here on

    def _plan_more(self) -> None:
        self._actor_scheduler.give_out()
        for model in self._models:
            if model.awaiting_load and not any(loading is model for _, loading in self._loads.values()):
                self._load_wanted(model)
        now = time.monotonic()
        for actor in self.actors.ready:
            actor.flush(now)

    def _load_wanted(self, model: ModelState) -> None:
        able = [actor for actor in self.actors.ready if self._actor_scheduler.can_run(actor, model)]
        for actor in able if model.replicas is not None else able[:1]:
            serial = self.state.scheduler.next_serial()
            self._loads[serial] = (actor, model)
            actor.handle.load.remote(serial, model.number)

    def _take_load(self, number: int, error: BaseException | None) -> None:
        actor, model = self._loads.pop(number)
        if error is not None:
            self._cannot(actor, model, error)
        elif not any(other is model for _, other in self._loads.values()):
            self.state.tell_loaded(model)

    def _take_one(self, actor: ActorHandle, task: TaskFuture, ok: bool, value: Any, now: float) -> None:
        if isinstance(value, ModelUnavailable) and not ok:
            task.model.queue.push(task, front=True)
            self._cannot(actor, task.model, value)
            return
        counted = task.model.counted
        counted.took(now - task.submitted)
        if ok:
            counted.completed += 1
        else:
            counted.failed += 1
            counted.quarantined += getattr(getattr(value, "finding", None), "code", "") == "RW804"
        self.state.conclude(task, ok, value)

    def _cannot(self, actor: ActorHandle, model: ModelState, error: BaseException) -> None:
        """This node cannot build the model; a file may be missing there. If no node can, all tasks of the model fail."""
        error.add_note(f"rankwise: on node {actor.host}")
        actor.cannot[model.number] = error
        if not any(self._actor_scheduler.can_run(other, model) for other in self.actors.ready):
            self.state.break_model(model, error)

    def _run_again(self, orphans: list[TaskFuture], why: str, is_its_own: bool) -> None:
        """Queue a lost actor's tasks again. If its process died, any of them may be the cause, so each runs alone until that is clear."""
        for task in reversed(orphans):
            if is_its_own:
                task.deaths += len(orphans) == 1
                task.alone = True
                if task.deaths >= MAX_KILLS:
                    task.model.counted.quarantined += 1
                    self.state.fail(task, killed_actors(task.model.name, described(task.node), task.deaths, why))
                    continue
            task.model.counted.rerun += 1
            if self.state.is_closing and not self.actors.all:
                self.state.fail(task, pool_closed())
            else:
                task.model.queue.push(task, front=True)

    # ---- without the lock

    def _read(self, task: TaskFuture, ok: bool, payload: Any, arrays: Any) -> tuple[bool, Any]:
        try:
            return ok, decode_value(payload, arrays, task.to_tensor) if ok else decode_error(payload, task.model.name)
        except Exception as error:  # the result cannot be read here: its class cannot be imported, say
            return False, error

    def _watch_deadlines(self) -> None:
        while not self.is_closed:
            state, now = self.state, time.monotonic()
            with self._lock:
                for task in state.deadlines.passed(now):
                    state.expire(task)
            state.settle()
            with self._lock:
                soonest = state.deadlines.next()
                if not state.is_closed:
                    self._changed.wait(1.0 if soonest is None else max(0.0, min(1.0, soonest - time.monotonic())))

    def _watch_nodes(self) -> None:
        """Start actors for missing placements and for nodes that have joined, until the pool is closed."""
        while not self.actors.stopped.wait(0.5):
            try:
                wanted = self._placements_wanted()
            except Exception as error:  # the cluster's head does not answer; actors that run go on
                log.warning("the Ray cluster does not tell its nodes: %s", error)
                continue
            with self._lock:
                if not self.is_closed:
                    for placement in wanted:
                        self.actors.start(placement)
            self.actors.look_at_calls()

    def _placements_wanted(self) -> list[Placement]:
        if not self.actors.may_start:
            return []
        workers, actors, nodes = self._options.workers, list(self.actors.all), membership.nodes()
        if isinstance(workers, int):
            return fixed_placements(workers, self._needs, nodes, [actor.placement for actor in actors])
        return node_placements(self._needs, nodes, [actor.node for actor in actors])


def _need(state: ModelState, options: PoolOptions) -> Resources:
    """The resources of a worker with this model, without the memory of a GPU, which Ray does not count."""
    return Resources(options.threads or 1, 1.0) if state.device == "cuda" else Resources(options.threads or 1, 0.0, state.nbytes)


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
