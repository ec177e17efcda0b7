"""The engine `Pool` uses unless told otherwise: worker processes of this machine, fed by shared memory."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

from rankwise.errors import UsageError
from rankwise.pool.api.grouped_streams import GroupedStream, PoolCalls
from rankwise.pool.api.model import Model, parse_bytes
from rankwise.pool.backend import PoolOptions, Requests, check_shape, memory_limits, plan_workers, states_of, this_machine
from rankwise.pool.memory.encoding import NUMPY, EncodedInputs
from rankwise.pool.memory.requests import InputEncoder, rows_and_key
from rankwise.pool.schedule.pool_state import Settings
from rankwise.pool.schedule.state import ModelState, Plan, any_seed, derived
from rankwise.pool.schedule.tasks import Chunk, TaskFuture, cut_up
from rankwise.pool.workers.dispatcher import Dispatcher

_LANE_SHARE = 4  # lanes may take this part of the memory


def start(models: dict[str, Model], options: PoolOptions) -> Processes:
    here = this_machine()
    wants_gpu = any(model.device != "cpu" for model in models.values())
    plan = plan_workers(here, options.workers, wants_gpu, options.threads, options.pin)
    states = states_of(models, here.gpus)
    _check_seats(states, plan)
    seed = any_seed() if options.seed is None else options.seed
    specs = {state.number: _spec(models[name], state, seed) for name, state in states.items()}
    return staffed(states, specs, plan, options, here.memory_bytes, seed, here.gpus)


def staffed(
    states: dict[str, ModelState],
    specs: dict[int, bytes],
    plan: Plan,
    options: PoolOptions,
    memory_bytes: int,
    seed: int,
    gpus: tuple[str, ...],
) -> Processes:
    """Workers for these models, by this plan."""
    lanes = parse_bytes(options.lane_bytes) if options.lane_bytes is not None else memory_bytes // _LANE_SHARE
    budgets = memory_limits(options.memory, {seat.device for seat in plan.seats})
    output_bytes = max(64 << 20, lanes // (2 * len(plan.seats)))
    settings = Settings(options.max_queue, lanes, output_bytes, options.idle_s, plan.seats, budgets, plan.why, seed)
    return Processes(states, plan, Dispatcher(list(states.values()), specs, settings), gpus)


class Processes:
    """A `Backend` of worker processes."""

    def __init__(self, models: dict[str, ModelState], plan: Plan, dispatcher: Dispatcher, gpus: tuple[str, ...]) -> None:
        self._gpus, self._changing, self._numbers = gpus, threading.Lock(), itertools.count(len(models))
        self.models, self.plan, self.dispatcher, self.counters = models, plan, dispatcher, dispatcher.counters
        self._encoder = InputEncoder(dispatcher.arena, dispatcher.state.input_bytes)
        self._fast_path = dispatcher.fast_path.send
        self.no_room = self._encoder.no_room
        self.unload = dispatcher.unload
        self.has_open_tasks = dispatcher.has_open_tasks
        self.close = dispatcher.close
        self.forget_after_fork = dispatcher.forget_after_fork
        self.read_in = dispatcher.read_in

    @property
    def is_closed(self) -> bool:
        return self.dispatcher.is_closed

    def submit(self, model: ModelState, inputs: tuple[Any, ...], deadline_s: float | None, priority: int, seed: int | None) -> Future[Any]:
        return self.submit_encoded(model, self._encoder.encode(model.name, inputs), deadline_s, priority, seed=seed)

    def stream(
        self, requests: Requests, window: int | None, deadline_s: float | None, priority: int, seed: int | None, length: int
    ) -> Iterator[Any]:
        submit = partial(self.submit_encoded, priority=priority) if priority else self.submit_encoded
        dispatcher = self.dispatcher

        def new_chunk(model: ModelState, kind: tuple[Any, ...]) -> Chunk:
            chunk = Chunk(model, kind, dispatcher)
            chunk.priority = priority
            return chunk

        def submit_chunk(chunk: Chunk) -> Future[Any]:
            chunk.submitted = time.monotonic()
            dispatcher.submit(chunk)
            return chunk

        calls = PoolCalls(
            self._encoder.encode,
            self._encoder.gather,
            submit,
            new_chunk,
            submit_chunk,
            dispatcher.abandon,
            dispatcher.has_open_tasks,
            len(self.plan.seats),
        )
        return GroupedStream(calls, window, deadline_s, seed, length).results(requests)

    def load(self, model: ModelState) -> Future[None]:
        future: Future[None] = Future()
        self.dispatcher.load(model, future)
        return future

    def add(self, name: str, model: Model) -> None:
        with self._changing:
            states = states_of({name: model}, self._gpus, next(self._numbers))
            _check_seats(states, self.plan)
            self.dispatcher.add(states[name], _spec(model, states[name], self.dispatcher.state.settings.seed))
            self.models[name] = states[name]

    def remove(self, name: str) -> None:
        with self._changing:
            self.dispatcher.remove(self.models.pop(name))

    def reload(self, name: str, model: Model) -> Future[None]:
        """The new one is built beside the old one, which goes on answering until it is there."""
        with self._changing:
            state = states_of({name: model}, self._gpus, next(self._numbers))[name]
            state.is_current = False
            _check_seats({name: state}, self.plan)
            self.dispatcher.add(state, _spec(model, state, self.dispatcher.state.settings.seed))
        loaded, done = self.load(state), Future[None]()

        def swap(_: Future[None]) -> None:
            error = loaded.exception()
            with self._changing:
                old = self.models.get(name) if error is None and not done.cancelled() else None
                if old is not None:
                    self.models[name] = state
            if old is not None:
                self.dispatcher.remove(old, state)
            else:
                self.dispatcher.remove(state)
            if done.set_running_or_notify_cancel():
                done.set_result(None) if error is None else done.set_exception(error)

        loaded.add_done_callback(swap)
        return done

    def empty(self, shape: tuple[int, ...], dtype: str, as_tensor: bool) -> Any:
        """Lane memory, which every worker reads in place."""
        arena, itemsize = self.dispatcher.arena, NUMPY[dtype].itemsize
        array = arena.lend(check_shape(shape, itemsize, arena.limit_bytes), dtype, as_tensor)
        if array is None:
            raise self.no_room("pool.empty", math.prod(shape) * itemsize)
        return array

    def stats(self) -> dict[str, Any]:
        return self.dispatcher.snapshot()

    def submit_encoded(
        self,
        model: ModelState,
        encoded: EncodedInputs,
        deadline_s: float | None = None,
        priority: int = 0,
        is_lazy: bool = False,
        seed: int | None = None,
    ) -> Future[Any]:
        if deadline_s is None and model.max_batch == 1 and not priority and not is_lazy and seed is None:
            fast_path = self._fast_path(model, encoded)
            if fast_path is not None:
                return fast_path
        now = time.monotonic()
        future = TaskFuture(model, encoded, now, self.dispatcher)
        if is_lazy:
            future.is_lazy = True
        if priority:
            future.priority = priority
        if deadline_s is not None:
            future.deadline = now + deadline_s
        if seed is not None:  # its numbers are its own, so it shares no batch
            future.seed = seed
        elif model.max_batch > 1:
            future.rows, key = rows_and_key(encoded[0])
            future.key = (future.to_tensor, key)
            if future.rows > model.max_batch:
                cut_up(future, self.dispatcher, self.dispatcher.arena)
        self.dispatcher.submit(future)
        return future


def _spec(model: Model, state: ModelState, seed: int) -> bytes:
    """A worker sees only its own GPU, whichever that is."""
    return model.spec(state.name, state.device.split(":")[0], derived(seed, "model", state.name))


def _check_seats(states: dict[str, ModelState], plan: Plan) -> None:
    for name, state in states.items():
        if not any(state.may_run_on(seat.device) for seat in plan.seats):
            raise UsageError(f"no worker has the device of model {name!r}, {state.device}", why=plan.why, next=("ask for more workers",))
