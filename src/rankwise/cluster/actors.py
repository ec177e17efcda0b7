"""The actors: starts them, listens to each in a thread, replaces lost ones, gives them tasks, and adds up their numbers."""

from __future__ import annotations

import itertools
import logging
import marshal
import math
import threading
import time
from collections import Counter, deque
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

from rankwise.cluster import membership
from rankwise.cluster.node import ActorSpec, PoolActor
from rankwise.cluster.placement import Placement, Resources, spread_replicas
from rankwise.pool.memory.encoding import torch_module
from rankwise.pool.schedule.pool_state import PoolState
from rankwise.pool.schedule.state import ModelState, derived
from rankwise.pool.schedule.tasks import Task, TaskFuture
from rankwise.pool.workers.fork_server import pause_s
from rankwise.version import __version__

log = logging.getLogger("rankwise.pool")
_UNHEARD = 2  # messages on their way to a busy actor: tasks that come meanwhile travel together
_FETCHING = 16  # large inputs that may be on their way to an actor
_TOGETHER = 8  # large inputs in one message, which arrives when all of them have arrived
_LISTENING = 2  # calls that wait for answers: another one waits while the answers of one are read
_MAX_EARLY = 3  # actors in a row that may die before they are ready
_END_S = 3.0
_SUMMED = ("replicas", "loads", "evictions")  # numbers that only the actors know
_SILENT_S = 60.0  # an actor sends something every second; after so long without it, it counts as lost


class _Call(NamedTuple):
    number: int
    ref: Any
    numbers: list[int]  # of the tasks
    is_large: bool


class ActorHandle:
    """One actor, and what it has been given. All methods are called with the engine's lock held."""

    def __init__(self, number: int, placement: Placement, handle: Any) -> None:
        self.number, self.placement, self.handle = number, placement, handle
        self.run = handle.run.options(concurrency_group="in")
        self.answers = handle.answers.options(concurrency_group="out")
        self.node, self.host, self.pid = placement.node, "", 0
        self.is_ready = False
        self.inflight: dict[int, TaskFuture] = {}
        self.cannot: dict[int, BaseException] = {}  # models that could not be built there, with the error
        self.numbers: dict[str, Any] = {}  # its latest statistics
        self._sent = self._fetching = 0  # messages that were sent, and large inputs that have not arrived
        self._calls: deque[_Call] = deque()  # messages whose arrival the actor has not confirmed
        self._next: list[tuple[int, TaskFuture]] = []
        self.thread: threading.Thread | None = None

    @property
    def is_exclusive(self) -> bool:
        return len(self.inflight) == 1 and next(iter(self.inflight.values())).alone

    @property
    def may_be_sent(self) -> bool:
        return len(self.inflight) < 2 * self.placement.workers or len(self._calls) < _UNHEARD

    def has_room_for(self, task: Task) -> bool:
        return not task.slots or self._fetching < _FETCHING

    def add(self, number: int, task: TaskFuture) -> None:
        self.inflight[number] = task
        self._next.append((number, task))
        self._fetching += bool(task.slots)

    def flush(self, now: float) -> None:
        """Send what was added: small tasks in one message."""
        for is_large, tasks in groupby(self._next, key=lambda entry: bool(entry[1].slots)):
            some = list(tasks)
            most = _TOGETHER if is_large else len(some)
            for first in range(0, len(some), most):
                self._send(some[first : first + most], is_large, now)
        self._next = []

    def _send(self, tasks: list[tuple[int, TaskFuture]], is_large: bool, now: float) -> None:
        refs: list[Any] = []
        entries = []
        for number, task in tasks:
            left_s = None if task.deadline is None else task.deadline - now
            entries.append((number, task.model.number, task.node, left_s, task.priority, task.seed, task.to_tensor, len(refs)))
            refs += task.slots
        self._sent += 1
        ref = self.run.remote(marshal.dumps(entries, 2), torch_module() is not None, *refs)
        self._calls.append(_Call(self._sent, ref, [number for number, _ in tasks], is_large))

    def heard(self, calls: int) -> None:
        while self._calls and self._calls[0].number <= calls:
            call = self._calls.popleft()
            self._fetching -= call.is_large * len(call.numbers)

    def failed_calls(self) -> list[tuple[list[int], Exception]]:
        """Messages that never arrived though the actor lives, because their inputs could not be fetched there; with the error."""
        ray, failed = membership.ray_module(), []
        for call in list(self._calls):
            if ray.wait([call.ref], timeout=0)[0]:
                try:
                    ray.get(call.ref)
                except ray.exceptions.RayActorError:
                    pass  # the thread that listens to the actor notices this
                except Exception as error:
                    failed.append((call.numbers, error))
        return failed


class ActorSet:
    """All actors of a pool. `start` and `remove` are called with the engine's lock held."""

    def __init__(self, engine: Any, spec: ActorSpec) -> None:
        self._engine, self._spec = engine, spec  # a RayEngine, whose `arrived`, `take` and `lost` are called
        self._state: PoolState = engine.state
        self._ray = membership.ray_module()
        self._kind = self._ray.remote(max_restarts=0, max_task_retries=0, concurrency_groups={"in": 1, "out": 1})(PoolActor)
        self._numbers = itertools.count(1)
        self.all: list[ActorHandle] = []
        self.stopped = threading.Event()
        self._early_deaths = 0
        self._not_before = 0.0

    @property
    def ready(self) -> list[ActorHandle]:
        return [actor for actor in self.all if actor.is_ready]

    @property
    def may_start(self) -> bool:
        """Whether an actor may be started now; after one that died before it was ready, there is a pause."""
        return time.monotonic() >= self._not_before

    def start(self, placement: Placement) -> None:
        number = next(self._numbers)
        seed = derived(self._spec.seed, "actor", number)
        spec = replace(self._spec, placement=placement, seed=seed)
        where: Any = "SPREAD"
        if placement.node:
            where = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(placement.node, soft=False)
        share = placement.share
        options = {"num_cpus": share.cpus, "num_gpus": share.gpus, "memory": share.memory or None, "scheduling_strategy": where}
        handle = self._kind.options(**options).remote(spec)
        actor = ActorHandle(number, placement, handle)
        actor.thread = threading.Thread(target=self._listen, args=(actor,), name=f"rankwise-ray-{number}", daemon=True)
        self.all.append(actor)
        actor.thread.start()

    def remove(self, actor: ActorHandle, was_ready: bool, why: str) -> None:
        self.all.remove(actor)
        if self._state.is_closed:
            return
        self._state.counters.restarts += 1
        self._early_deaths = 0 if was_ready else self._early_deaths + 1
        self._not_before = time.monotonic() + pause_s(self._early_deaths)
        where = actor.host or actor.node[:12] or "unknown"
        log.warning("actor %d on node %s is gone (%s); it is replaced", actor.number, where, why)
        if self._early_deaths >= _MAX_EARLY and not self.ready:
            self._state.break_all(f"{_MAX_EARLY} actors in a row died before they were ready; the last one: {why}")

    def look_at_calls(self) -> None:
        with self._state.lock:
            failed = [(actor, *found) for actor in self.ready for found in actor.failed_calls()]
            for actor, numbers, error in failed:
                for number in numbers:
                    task = actor.inflight.pop(number, None)
                    if task is not None and not task.is_over:
                        self._state.fail(task, error)
        self._state.settle()

    def close(self) -> None:
        """End all actors; the workers below an actor end with it."""
        self.stopped.set()
        for actor in list(self.all):
            self._ray.kill(actor.handle)
        for actor in list(self.all):
            if actor.thread is not None and actor.thread is not threading.current_thread():
                actor.thread.join(_END_S)

    def _listen(self, actor: ActorHandle) -> None:
        try:
            facts = self._ray.get(actor.handle.begin.remote())
            actor.node, actor.host, actor.pid = facts["node"], facts["host"], facts["pid"]
            _check_version(actor.host, facts.get("rankwise"))
            self._engine.arrived(actor)
            calls = deque(actor.answers.remote() for _ in range(_LISTENING))
            while not self.stopped.is_set():
                heard, message, arrays, numbers = self._ray.get(calls.popleft(), timeout=_SILENT_S)
                calls.append(actor.answers.remote())
                answers, seconds = marshal.loads(message)
                with self._state.lock:
                    actor.heard(heard)
                    actor.numbers = numbers or actor.numbers
                self._engine.take(actor, answers, arrays, seconds)
        except Exception as error:
            self._lose(actor, error)

    def _lose(self, actor: ActorHandle, error: Exception) -> None:
        """End the actor, whatever the error was: its tasks will run elsewhere, and it must not go on with them."""
        is_its_own = isinstance(error, self._ray.exceptions.ActorDiedError)
        if not self.stopped.is_set():
            try:
                self._ray.kill(actor.handle)
                is_its_own = is_its_own and membership.is_alive(actor.node) and not _is_of_node(error)
            except Exception:  # the cluster is gone as well
                is_its_own = False
        self._engine.lost(actor, _told(error), is_its_own)


AHEAD_S = 0.05  # seconds of work that an actor is given: it need not wait for us, and little has to be done again elsewhere
MOST_AHEAD = 4000  # tasks
QUANTUM = 64  # tasks of one model before the others get their turn


class ActorScheduler:
    """Decides which actor gets which task next: first something for each worker, then so much that no worker waits for the driver. All
    methods are called with the engine's lock held."""

    def __init__(self, state: PoolState, needs: dict[str, Resources], actors: ActorSet) -> None:
        self._state, self._scheduler, self._needs, self._actors = state, state.scheduler, needs, actors
        self._held: dict[int, dict[int, int]] = {
            model.number: {} for model in state.scheduler.models.values() if model.replicas is not None
        }

    def give_out(self) -> None:
        """Give waiting tasks to actors that have room. An actor's next `flush` sends them."""
        ready = [actor for actor in self._actors.ready if actor.may_be_sent]
        if ready and self._scheduler.has_waiting:
            for is_ahead in (False, True):
                for actor in sorted(ready, key=lambda actor: len(actor.inflight) / actor.placement.workers):
                    self._fill(actor, is_ahead)

    def _fill(self, actor: ActorHandle, is_ahead: bool) -> None:
        now, progress = time.monotonic(), True
        while progress and not actor.is_exclusive:
            progress = False
            for model in self._scheduler.by_turn():
                if self.can_run(actor, model):
                    progress |= self._give(actor, model, _most(actor, model, is_ahead), now)

    def _give(self, actor: ActorHandle, model: ModelState, most: int, now: float) -> bool:
        """Give the actor some tasks of this model. A task that was with an actor that died gets an actor to itself."""
        given = 0
        while given < QUANTUM and len(actor.inflight) < most and not actor.is_exclusive:
            task = model.queue.peek()
            if task is None or (task.alone and actor.inflight) or not actor.has_room_for(task):
                break
            model.queue.pop()
            if not self._state.begins(task, now):
                continue
            actor.add(self._scheduler.next_serial(), task)  # type: ignore[arg-type]
            model.virtual_s += model.order_s or 0.001
            given += 1
        return bool(given)

    def can_run(self, actor: ActorHandle, model: ModelState) -> bool:
        if model.number in actor.cannot or not actor.placement.can_hold(self._needs[model.name]):
            return False
        return model.number not in self._held or actor.number in self._held[model.number]

    def spread_replicas(self) -> None:
        for model in self._scheduler.models.values():
            if model.replicas is None:
                continue
            able = {actor.number: actor for actor in self._actors.ready if actor.placement.can_hold(self._needs[model.name])}
            before = self._held[model.number]
            held = spread_replicas(model.replicas, before, {number: actor.placement.workers for number, actor in able.items()})
            for number, count in held.items():
                if before.get(number) != count:
                    able[number].handle.hold.remote(model.number, count)
            self._held[model.number] = held


def _most(actor: ActorHandle, model: ModelState, is_ahead: bool) -> int:
    """How many tasks may be with this actor when another task of the model is sent to it."""
    least = actor.placement.workers * model.max_batch
    if not is_ahead:
        return least
    known = math.ceil(AHEAD_S / model.order_s) if model.order_s else 0
    return min(MOST_AHEAD, max(2 * least, actor.placement.workers * known))


def _check_version(host: str, version: str | None) -> None:
    """Raise if the node has another version of rankwise, which might read messages in another way."""
    if version != __version__:
        raise RuntimeError(f"node {host} has rankwise {version or 'of another version'}, and this program has {__version__}")


def _told(error: Exception) -> str:
    """The useful lines of Ray's long text. If the actor failed at its start (rankwise may be missing there), the exception."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if any("creation task" in line for line in lines[:1]):
        return f"it could not be started: {lines[-1]}"[:600]
    return " ".join([line for line in lines if "died" in line or "dead" in line][:2] or lines[:1])[:600]


def _is_of_node(error: Exception) -> bool:
    text = str(error).lower()
    return "node has died" in text or "node died" in text or "owner" in text


def cluster_stats(shown: dict[str, Any], actors: ActorSet, plan: str) -> dict[str, Any]:
    """`shown`, what the driver knows of the pool, joined with the actors' latest statistics, which are at most a second old."""
    told = [actor.numbers["models"] for actor in actors.ready if actor.numbers]
    running = Counter(task.model.name for actor in actors.all for task in actor.inflight.values() if not task.is_over)
    workers: list[dict[str, Any]] = []
    for actor in actors.all:
        for worker in actor.numbers.get("workers", ()):
            workers.append({**worker, "number": len(workers) + 1, "node": actor.host, "actor": actor.number})
    lanes = [actor.numbers["lanes"] for actor in actors.ready if actor.numbers]
    return {
        **shown,
        "plan": plan,
        "models": {name: _model(model, [each[name] for each in told], running[name]) for name, model in shown["models"].items()},
        "workers": workers,
        "restarts": shown["restarts"] + sum(actor.numbers.get("restarts", 0) for actor in actors.all),
        "lanes": {name: sum(each[name] for each in lanes) for name in shown["lanes"]},
        "actors": [
            {"number": actor.number, "node": actor.host, "ready": actor.is_ready, "inflight": len(actor.inflight)} for actor in actors.all
        ],
    }


def _model(shown: dict[str, Any], told: list[dict[str, Any]], running: int) -> dict[str, Any]:
    return {
        **shown,
        "running": running,
        "memory_bytes": max([each["memory_bytes"] or 0 for each in told], default=0) or None,
        "max_batch": min([each["max_batch"] for each in told], default=shown["max_batch"]),
        "batch_cost_s": next((each["batch_cost_s"] for each in told if each["batch_cost_s"]), None),
        "finding": next((each["finding"] for each in (shown, *told) if each["finding"]), None),
        **{name: sum(each[name] for each in told) for name in _SUMMED},
    }
