"""`rankwise.Pool`: many models, many processes, one `submit`."""

from __future__ import annotations

import asyncio
import atexit
import math
import operator
import os
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from rankwise.errors import UsageError
from rankwise.pool import machine
from rankwise.pool.arguments import (
    check_models,
    check_pool,
    check_shape,
    check_window,
    checked_deadline,
    checked_priority,
    is_request,
    memory_limits,
    parse_bytes,
)
from rankwise.pool.astream import AsyncStream
from rankwise.pool.chunks import Chunk
from rankwise.pool.combine import Combine, Ensemble, Router, Split
from rankwise.pool.dispatch import Dispatcher, Settings
from rankwise.pool.dtypes import NUMPY, SHARED, name_of_numpy, name_of_torch
from rankwise.pool.inlet import Inlet, rows_and_key
from rankwise.pool.metrics import register
from rankwise.pool.model import Model
from rankwise.pool.parts import cut_up
from rankwise.pool.schedule import ModelState
from rankwise.pool.seeds import any_seed, checked_seed, derived, seed_of
from rankwise.pool.snapshot import snapshot
from rankwise.pool.stream import WINDOW, Stream, Ways
from rankwise.pool.tasks import Parcel, TaskFuture
from rankwise.pool.verdicts import missing_main_guard

_LANE_SHARE = 4  # lanes may take this part of the memory
_LIVE: weakref.WeakSet[Pool] = weakref.WeakSet()
_ENDING: set[threading.Thread] = set()  # of pools that nobody has any more, until what was submitted to them is done


class Pool:
    """Runs models in worker processes.

    Usable from any thread and event loop; `with` closes it, after everything submitted is done.
    """

    def __init__(
        self,
        models: Mapping[str, Model | Any],
        *,
        workers: int | str = "auto",
        memory: int | str | Mapping[str, int | str] | None = None,
        max_queue: int = 10_000,
        idle_s: float | None = None,
        threads: int | None = None,
        pin: bool = False,
        lane_bytes: int | str | None = None,
        seed: int | None = None,
    ) -> None:
        _check_not_importing_main()
        check_pool(workers, max_queue, idle_s, threads, memory, lane_bytes)
        seed = checked_seed(seed)
        self._models = _checked(models)
        here = machine.look()
        wants_gpu = any(model.device != "cpu" for model in self._models.values())
        self.plan = machine.plan(here, workers or 1, wants_gpu, threads, pin)
        self._states = {
            name: ModelState(
                number=number,
                name=name,
                device=_device_of(name, model, here.gpus),
                replicas=model.replicas,
                max_batch=model.max_batch,
                max_delay_s=model.max_delay_ms / 1000,
                nbytes=model.expected_bytes,
                limit_s=model.limit_s,
            )
            for number, (name, model) in enumerate(self._models.items())
        }
        self._joint: set[Future[Any]] = set()
        self._local: Any = None
        if workers == 0:
            from rankwise.pool.child.inprocess import InProcess

            devices = {name: model.device if ":" in model.device else self._states[name].device for name, model in self._models.items()}
            seeds = {name: derived(seed, "model", name) if seed is not None else None for name in self._models}
            self._local = InProcess({name: model.spec(name, devices[name], seeds[name]) for name, model in self._models.items()})
            return
        _check_seats(self._states.values(), self.plan)
        seed = any_seed() if seed is None else seed
        # A worker sees only its own GPU, whichever that is.
        specs = {
            state.number: self._models[name].spec(name, state.device.split(":")[0], derived(seed, "model", name))
            for name, state in self._states.items()
        }
        lanes = parse_bytes(lane_bytes) if lane_bytes is not None else here.memory_bytes // _LANE_SHARE
        seats = self.plan.seats
        budgets = memory_limits(memory, {seat.device for seat in seats})
        settings = Settings(max_queue, lanes, max(64 << 20, lanes // (2 * len(seats))), idle_s, seats, budgets, self.plan.why, seed)
        self._dispatcher = Dispatcher(list(self._states.values()), specs, settings)
        self._inlet, self._express = Inlet(self._dispatcher.arena, self._dispatcher.input_bytes), self._dispatcher.express.send
        _LIVE.add(self)

    def submit(self, model: str, *inputs: Any, deadline_s: float | None = None, priority: int = 0, seed: int | None = None) -> Future[Any]:
        """Run `model(*inputs)` in a worker. Raises PoolFull rather than wait."""
        state = self._states.get(model) or self._state(model)
        if deadline_s is not None or seed is not None or type(priority) is not int:
            deadline_s, priority, seed = checked_deadline(deadline_s), checked_priority(priority), checked_seed(seed)
        if self._local is not None:
            return self._local.submit(model, inputs, deadline_s, seed)  # type: ignore[no-any-return]
        return self._submit_parcel(state, self._inlet.parcel(state, inputs), deadline_s, priority, seed=seed)

    def map(
        self,
        model: str,
        inputs: Iterable[Any],
        *,
        window: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        seed: int | None = None,
    ) -> Iterator[Any]:
        """Results in the order of `inputs`, which may be endless: at most `window` of them are under way at once.

        A tuple among the inputs is several arguments.
        """
        state = self._states.get(model) or self._state(model)
        requests = ((state, item if isinstance(item, tuple) else (item,)) for item in inputs)
        return self._stream(requests, window, deadline_s, priority, seed, _length_of(inputs))

    def stream(
        self,
        requests: Iterable[tuple[Any, ...]],
        *,
        window: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        seed: int | None = None,
    ) -> Iterator[Any]:
        """`map` over several models: each request is a tuple of the model's name and its inputs."""
        known = (
            (self._states.get(model) or self._state(model), inputs)
            for request in requests
            if type(request) is tuple or is_request(request)
            for model, *inputs in (request,)
        )
        return self._stream(known, window, deadline_s, priority, seed, _length_of(requests))

    async def asubmit(self, model: str, *inputs: Any, deadline_s: float | None = None, priority: int = 0, seed: int | None = None) -> Any:
        """`submit` for asyncio: awaits the result; cancelling the await cancels the task."""
        return await asyncio.wrap_future(self.submit(model, *inputs, deadline_s=deadline_s, priority=priority, seed=seed))

    def amap(
        self,
        model: str,
        inputs: Iterable[Any] | AsyncIterable[Any],
        *,
        window: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        seed: int | None = None,
    ) -> AsyncIterator[Any]:
        """`map` for asyncio; `inputs` may be an async iterable."""
        self._state(model)
        check_window(window)
        deadline_s, priority = checked_deadline(deadline_s), checked_priority(priority)
        seed = checked_seed(seed)

        def submit(item: Any, number: int) -> Future[Any]:
            arguments = item if isinstance(item, tuple) else (item,)
            return self.submit(model, *arguments, deadline_s=deadline_s, priority=priority, seed=seed_of(seed, number))

        return AsyncStream(submit, self.has_open_tasks, window or WINDOW).results(inputs)

    def empty(self, shape: int | Iterable[int], dtype: Any = "float32") -> Any:
        """An array in lane memory (a tensor, if dtype is torch's): what is written there is submitted without a copy.

        Not to be changed between `submit` and the result.
        """
        name, as_tensor = _dtype_name("float32" if dtype is None else dtype)
        sizes = check_shape(shape, NUMPY[name].itemsize, None)
        if self._local is not None:
            return self._local.empty(sizes, name, as_tensor)
        array = self._dispatcher.arena.lend(sizes, name, as_tensor)
        if array is None:
            raise self._inlet.no_room("pool.empty", math.prod(sizes) * NUMPY[name].itemsize)
        return array

    def stats(self) -> dict[str, Any]:
        """Numbers of this moment: per model, per worker, and of the lanes."""
        if self._local is not None:
            return self._local.stats()  # type: ignore[no-any-return]
        return snapshot(self._dispatcher)

    def load(self, model: str) -> Future[None]:
        """Have the model loaded before anybody asks it anything; done when it is. One that could not be built is tried again."""
        state = self._state(model)
        if self._local is not None:
            return self._local.load_now(model)  # type: ignore[no-any-return]
        future: Future[None] = Future()
        self._dispatcher.load(state, future)
        return future

    def unload(self, model: str) -> None:
        """The model leaves the workers as soon as what was sent to them is done; whoever asks it then finds it built, and its weights
        read, anew. So `unload` and `load` after each other are a reload, in which no task is lost."""
        state = self._state(model)
        if self._local is not None:
            self._local.unload(model)
        else:
            self._dispatcher.unload(state)

    def ensemble(self, models: Iterable[str], combine: Combine = "mean") -> Ensemble:
        """All of these models on each input; outputs combined by "mean", "vote" or a callable that gets the list of them."""
        return Ensemble(self, models, combine)

    def split(self, weights: Mapping[str, float]) -> Split:
        """One of these models by weight, as in an A/B test; the same key always gets the same one."""
        return Split(self, weights)

    def router(self, choose: Callable[..., str]) -> Router:
        """The model that `choose(*inputs)` names."""
        return Router(self, choose)

    def register_metrics(self, registry: Any = None, name: str = "") -> None:
        """Show the pool's numbers to Prometheus: in this registry of prometheus_client, or its usual one. The label `pool` is `name`, or
        tells the pools of a registry apart by numbers."""
        register(self, (self._local or self._dispatcher).counters, registry, name)

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self._states)

    def model(self, name: str) -> Model:
        """What was said about it."""
        self._state(name)
        return self._models[name]

    def close(self, cancel: bool = False, timeout: float | None = None) -> None:
        """Finish what was submitted (or cancel what waits), then end all workers."""
        if cancel:
            for future in list(self._joint):
                future.cancel()
        else:
            started = time.monotonic()
            wait(list(self._joint), timeout)  # before the pool takes no more tasks: what combines outputs may have some
            timeout = max(0.0, timeout - (time.monotonic() - started)) if timeout is not None else None
        if self._local is not None:
            self._local.close()
        else:
            self._dispatcher.close(cancel, timeout)

    def has_open_tasks(self) -> bool:
        """Whether anything that was submitted waits or runs."""
        return self._local is None and self._dispatcher.has_open_tasks()

    def await_at_close(self, future: Future[Any]) -> None:
        """It is made of results of this pool, and done when these have been put together."""
        self._joint.add(future)
        future.add_done_callback(self._joint.discard)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(cancel=kind is not None, timeout=None if kind is None else 5)

    def __del__(self) -> None:
        """Nobody has the pool any more. Somebody may still have futures of it: what was submitted is done first."""
        dispatcher = getattr(self, "_dispatcher", None)
        if dispatcher is None or dispatcher.is_closed:
            return
        if dispatcher.has_open_tasks() and not sys.is_finalizing():
            try:
                ending = threading.Thread(target=_end, args=(dispatcher,), name="rankwise-end", daemon=True)
                _ENDING.add(ending)
                ending.start()
                return
            except RuntimeError:  # the interpreter is about to end, and makes no more threads
                _ENDING.discard(ending)
        dispatcher.close(cancel=True, timeout=0)

    def _state(self, model: str) -> ModelState:
        state = self._states.get(model)
        if state is None:
            raise UsageError(f"the pool has no model {model!r}", why=f"it has {', '.join(self._states)}")
        return state

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
        future = TaskFuture(model, parcel, now, self._dispatcher)
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
                cut_up(future, self._dispatcher)
        self._dispatcher.submit(future)
        return future

    def _stream(
        self,
        requests: Iterator[tuple[ModelState, Sequence[Any]]],
        window: int | None,
        deadline_s: float | None,
        priority: int,
        seed: int | None,
        length: int,
    ) -> Iterator[Any]:
        check_window(window)
        deadline_s, priority = checked_deadline(deadline_s), checked_priority(priority)
        seed = checked_seed(seed)
        if self._local is not None:
            local = self._local.submit
            return (
                local(model.name, tuple(inputs), deadline_s, seed_of(seed, number)).result()
                for number, (model, inputs) in enumerate(requests)
            )
        submit = partial(self._submit_parcel, priority=priority) if priority else self._submit_parcel
        dispatcher = self._dispatcher

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


def _length_of(source: Any) -> int:
    """0 where it does not say."""
    try:
        return operator.length_hint(source)
    except Exception:  # whatever its __len__ does
        return 0


def _checked(models: Mapping[str, Any]) -> dict[str, Model]:
    check_models(models)
    found = {name: model if isinstance(model, Model) else Model(model) for name, model in models.items()}
    for name, model in found.items():
        model.check(name)
    return found


def _device_of(name: str, model: Model, gpus: tuple[str, ...]) -> str:
    """Where it may run: "cpu", "cuda" for any GPU, or one of them by the name that a worker is given it by."""
    kind, _, number = model.device.partition(":")
    if kind == "auto":
        return "cuda" if gpus else "cpu"
    if kind == "cuda" and int(number or 0) >= len(gpus):
        shown = f"{len(gpus)} GPUs" if gpus else "no GPU"
        raise UsageError(
            f"model {name!r} wants {model.device}, but this machine shows {shown}", next=('device="auto" takes what there is',)
        )
    return f"cuda:{gpus[int(number)]}" if number else kind


def _check_seats(states: Iterable[ModelState], plan: machine.Plan) -> None:
    for state in states:
        if not any(state.may_run_on(seat.device) for seat in plan.seats):
            raise UsageError(
                f"no worker has the device of model {state.name!r}, {state.device}", why=plan.why, next=("ask for more workers",)
            )


def _dtype_name(dtype: Any) -> tuple[str, bool]:
    if type(dtype).__module__ == "torch":
        name = name_of_torch(dtype)
        if name:
            return name, True
    else:
        import numpy as np

        try:
            name = dtype if dtype in NUMPY else name_of_numpy(np.dtype(dtype))
        except TypeError:
            name = ""
        if name:
            return name, name not in SHARED
    raise UsageError(f"{dtype!r} cannot lie in lane memory")


def _check_not_importing_main() -> None:
    module = sys.modules.get("rankwise.pool.child.main_module")
    if module is not None and module.is_importing:
        raise missing_main_guard()


def _end(dispatcher: Dispatcher) -> None:
    dispatcher.close(cancel=False, timeout=None)
    _ENDING.discard(threading.current_thread())


def _finish_all() -> None:
    """The interpreter ends: what was submitted is done first, as with the standard library's executors; not after Ctrl-C, then or now."""
    try:
        if getattr(sys, "last_type", None) is not KeyboardInterrupt:  # what the script ended with
            for pool in list(_LIVE):
                pool.close()
            for thread in list(_ENDING):
                thread.join()
    finally:
        for pool in list(_LIVE):
            pool.close(cancel=True, timeout=0)


def _forget_in_child() -> None:
    for pool in list(_LIVE):  # only those with workers are there
        pool._dispatcher.forget_after_fork()
    _LIVE.clear()


atexit.register(_finish_all)
os.register_at_fork(after_in_child=_forget_in_child)
