"""The engine `Pool` uses unless told otherwise: worker processes of this machine, fed by shared memory."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

from rankwise.errors import UsageError
from rankwise.pool import machine
from rankwise.pool.arguments import memory_limits, parse_bytes
from rankwise.pool.backend import PoolOptions, Requests, states_of
from rankwise.pool.chunks import Chunk
from rankwise.pool.dispatch import Dispatcher, Settings
from rankwise.pool.dtypes import NUMPY
from rankwise.pool.inlet import Inlet, rows_and_key
from rankwise.pool.machine import Plan
from rankwise.pool.model import Model
from rankwise.pool.parts import cut_up
from rankwise.pool.schedule import ModelState
from rankwise.pool.seeds import any_seed, derived
from rankwise.pool.snapshot import snapshot
from rankwise.pool.stream import Stream, Ways
from rankwise.pool.tasks import Parcel, TaskFuture

_LANE_SHARE = 4  # lanes may take this part of the memory


def start(models: dict[str, Model], options: PoolOptions) -> Processes:
    here = machine.look()
    wants_gpu = any(model.device != "cpu" for model in models.values())
    plan = machine.plan(here, options.workers, wants_gpu, options.threads, options.pin)
    states = states_of(models, here.gpus)
    _check_seats(states, plan)
    seed = any_seed() if options.seed is None else options.seed
    # A worker sees only its own GPU, whichever that is.
    specs = {
        state.number: models[name].spec(name, state.device.split(":")[0], derived(seed, "model", name)) for name, state in states.items()
    }
    lanes = parse_bytes(options.lane_bytes) if options.lane_bytes is not None else here.memory_bytes // _LANE_SHARE
    budgets = memory_limits(options.memory, {seat.device for seat in plan.seats})
    output_bytes = max(64 << 20, lanes // (2 * len(plan.seats)))
    settings = Settings(options.max_queue, lanes, output_bytes, options.idle_s, plan.seats, budgets, plan.why, seed)
    return Processes(states, plan, Dispatcher(list(states.values()), specs, settings))


class Processes:
    """A `Backend` of worker processes."""

    def __init__(self, models: dict[str, ModelState], plan: Plan, dispatcher: Dispatcher) -> None:
        self.models, self.plan, self.dispatcher, self.counters = models, plan, dispatcher, dispatcher.counters
        self._inlet = Inlet(dispatcher.arena, dispatcher.input_bytes)
        self._express = dispatcher.express.send
        self.unload = dispatcher.unload
        self.has_open_tasks = dispatcher.has_open_tasks
        self.close = dispatcher.close
        self.forget_after_fork = dispatcher.forget_after_fork

    @property
    def is_closed(self) -> bool:
        return self.dispatcher.is_closed

    def submit(self, model: ModelState, inputs: tuple[Any, ...], deadline_s: float | None, priority: int, seed: int | None) -> Future[Any]:
        return self._submit_parcel(model, self._inlet.parcel(model, inputs), deadline_s, priority, seed=seed)

    def stream(
        self, requests: Requests, window: int | None, deadline_s: float | None, priority: int, seed: int | None, length: int
    ) -> Iterator[Any]:
        submit = partial(self._submit_parcel, priority=priority) if priority else self._submit_parcel
        dispatcher = self.dispatcher

        def new_chunk(model: ModelState, kind: tuple[Any, ...]) -> Chunk:
            chunk = Chunk(model, kind, dispatcher)
            chunk.priority = priority
            return chunk

        def submit_chunk(chunk: Chunk) -> Future[Any]:
            chunk.submitted = time.monotonic()
            dispatcher.submit(chunk)
            return chunk

        ways = Ways(
            self._inlet.parcel, submit, new_chunk, submit_chunk, dispatcher.abandon, dispatcher.has_open_tasks, len(self.plan.seats)
        )
        return Stream(ways, window, seed, length).results(requests, deadline_s)

    def load(self, model: ModelState) -> Future[None]:
        future: Future[None] = Future()
        self.dispatcher.load(model, future)
        return future

    def empty(self, shape: tuple[int, ...], dtype: str, as_tensor: bool) -> Any:
        """Lane memory, which every worker reads in place."""
        array = self.dispatcher.arena.lend(shape, dtype, as_tensor)
        if array is None:
            raise self._inlet.no_room("pool.empty", math.prod(shape) * NUMPY[dtype].itemsize)
        return array

    def stats(self) -> dict[str, Any]:
        return snapshot(self.dispatcher)

    def _submit_parcel(
        self,
        model: ModelState,
        parcel: Parcel,
        deadline_s: float | None = None,
        priority: int = 0,
        is_lazy: bool = False,
        seed: int | None = None,
    ) -> Future[Any]:
        if deadline_s is None and model.max_batch == 1 and not priority and not is_lazy and seed is None:
            express = self._express(model, parcel)
            if express is not None:
                return express
        now = time.monotonic()
        future = TaskFuture(model, parcel, now, self.dispatcher)
        if is_lazy:
            future.is_lazy = True
        if priority:
            future.priority = priority
        if deadline_s is not None:
            future.deadline = now + deadline_s
        if seed is not None:  # its numbers are its own, so it shares no batch
            future.seed = seed
        elif model.max_batch > 1:
            future.rows, key = rows_and_key(parcel[0])
            future.key = (future.to_tensor, key)
            if future.rows > model.max_batch:
                cut_up(future, self.dispatcher)
        self.dispatcher.submit(future)
        return future


def _check_seats(states: dict[str, ModelState], plan: Plan) -> None:
    for name, state in states.items():
        if not any(state.may_run_on(seat.device) for seat in plan.seats):
            raise UsageError(f"no worker has the device of model {name!r}, {state.device}", why=plan.why, next=("ask for more workers",))
