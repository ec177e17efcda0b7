"""`rankwise.Pool`: many models, many processes, one `submit`."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from rankwise.errors import UsageError
from rankwise.pool.api.ensembles import COMBINES, Combine, Ensemble, Router, Split
from rankwise.pool.api.model import Model, check_models, is_imported_by_worker, is_importing_script
from rankwise.pool.api.streams import WINDOW, AsyncStream, awaited, checked_options, checked_seed, is_request, stream_options
from rankwise.pool.backend import Backend, Growing, PoolOptions, check_shape, start
from rankwise.pool.errors import Unsendable, missing_main_guard
from rankwise.pool.memory.encoding import NUMPY, SHARED, name_of_numpy, name_of_torch
from rankwise.pool.schedule.state import ModelState, monotonic, seed_of
from rankwise.pool.stats import register

_LIVE: weakref.WeakSet[Pool] = weakref.WeakSet()
_ENDING: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # these close pools that are no longer referenced
_FIRST = 100  # before the queues of multiprocessing, to which callbacks may pass results (10)


class Pool:
    """Runs models in worker processes, of this machine or (engine="ray") of a Ray cluster.

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
        engine: str = "processes",
        address: str | None = None,
    ) -> None:
        if is_importing_script():
            raise missing_main_guard()
        options = PoolOptions(workers, memory, max_queue, idle_s, threads, pin, lane_bytes, checked_seed(seed), address)
        options.check(engine)
        if is_imported_by_worker():  # there the module's own pool is not used
            engine, options = "processes", replace(options, workers=0, address=None)
        self._joint: set[Future[Any]] = set()
        self._models = _checked(models)
        self._backend = start(engine, self._models, options)
        self._states, self._submit, self.plan = self._backend.models, self._backend.submit, self._backend.plan
        _LIVE.add(self)
        atexit.unregister(_finish_all)  # last registered runs first: this has to run before the exit handlers of what the engine imported
        atexit.register(_finish_all)
        multiprocessing = sys.modules.get("multiprocessing")  # its processes have imported it, and end without the handlers of atexit
        if multiprocessing is not None and multiprocessing.parent_process() is not None:
            multiprocessing.util.Finalize(None, _finish_all, exitpriority=_FIRST)

    def submit(self, model: str, *inputs: Any, deadline_s: float | None = None, priority: int = 0, seed: int | None = None) -> Future[Any]:
        """Run `model(*inputs)` in a worker. Raises PoolFull rather than wait."""
        state = self._states.get(model) or self._state(model)
        if deadline_s is not None or seed is not None or type(priority) is not int:
            deadline_s, priority, seed = checked_options(deadline_s, priority, seed)
        return self._submit(state, inputs, deadline_s, priority, seed)

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
        state = self._state(model)
        requests = ((state, item if isinstance(item, tuple) else (item,)) for item in inputs)
        return self._backend.stream(requests, stream_options(inputs, window, deadline_s, priority, seed))

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
            (self._states.get(request[0]) or self._state(request[0]), request[1:])
            for request in requests
            if (type(request) is tuple and request) or is_request(request)
        )
        return self._backend.stream(known, stream_options(requests, window, deadline_s, priority, seed))

    async def asubmit(self, model: str, *inputs: Any, deadline_s: float | None = None, priority: int = 0, seed: int | None = None) -> Any:
        """`submit` for asyncio: awaits the result; cancelling the await cancels the task."""
        return await awaited(self.submit(model, *inputs, deadline_s=deadline_s, priority=priority, seed=seed))

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
        said = stream_options(None, window, deadline_s, priority, seed)

        def submit(item: Any, number: int) -> Future[Any]:
            arguments = item if isinstance(item, tuple) else (item,)
            own_seed = seed_of(said.seed, number)
            return self.submit(model, *arguments, deadline_s=said.deadline_s, priority=said.priority, seed=own_seed)

        return AsyncStream(submit, self.has_open_tasks, window or WINDOW).results(inputs)

    def empty(self, shape: int | Iterable[int], dtype: Any = "float32") -> Any:
        """An array in lane memory (a tensor, if dtype is torch's): what is written there is submitted without a copy.

        Not to be changed between `submit` and the result.
        """
        name, as_tensor = _dtype_name("float32" if dtype is None else dtype)
        return self._backend.empty(check_shape(shape), name, as_tensor)

    def stats(self) -> dict[str, Any]:
        """Numbers of this moment: per model, per worker, and of the lanes."""
        return self._backend.stats()

    def load(self, model: str) -> Future[None]:
        """Load the model before its first task; the future is done when it is loaded. A model that could not be built is tried again."""
        return self._backend.load(self._state(model))

    def unload(self, model: str) -> None:
        """The model leaves the workers as soon as they have done the tasks sent to them; a later task builds it and reads its weights
        again. So `unload` followed by `load` is a reload, in which no task is lost."""
        self._backend.unload(self._state(model))

    def add(self, name: str, model: Model | Any) -> None:
        """Add one more model, while the others run."""
        if name in self._models:
            raise UsageError(f"the pool has a model {name!r} already", next=("give it another name, or remove that one first",))
        checked = _checked({name: model})[name]
        self._growing("added").add(name, checked)
        self._models[name] = checked

    def reload(self, name: str, model: Model | Any = None) -> Future[None]:
        """Build the model and read its weights again. The present one answers until the new one is loaded, and stays if the new one cannot
        be built; then the future says why. `model` is the new definition, if it is to change."""
        self._state(name)
        checked = self._models[name] if model is None else _checked({name: model})[name]
        future = self._growing("reloaded").reload(name, checked)

        def note(done: Future[None]) -> None:
            if not done.cancelled() and done.exception() is None:
                self._models[name] = checked

        future.add_done_callback(note)
        return future

    def remove(self, name: str) -> None:
        """The model takes no more tasks, and leaves the workers when its tasks are done."""
        self._state(name)
        self._growing("removed").remove(name)
        del self._models[name]

    def ensemble(self, models: Iterable[str], combine: Combine = "mean") -> Ensemble:
        """Run all of these models on each input, and combine their outputs by "mean", "vote" or a callable that gets the list of them."""
        return Ensemble(self, models, combine)

    def split(self, weights: Mapping[str, float]) -> Split:
        """One of these models by weight, as in an A/B test; the same key always gets the same one."""
        return Split(self, weights)

    def router(self, choose: Callable[..., str]) -> Router:
        """The model that `choose(*inputs)` names."""
        return Router(self, choose)

    def register_metrics(self, registry: Any = None, name: str = "") -> None:
        """Show the pool's numbers to Prometheus: in this registry of prometheus_client, or in its default one. The label `pool` is `name`;
        without a name, numbers tell the pools of a registry apart."""
        register(self, self._backend.counters, registry, name)

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self._states)

    def model(self, name: str) -> Model:
        """The `Model` that the pool was given under this name."""
        self._state(name)
        return self._models[name]

    def close(self, cancel: bool = False, timeout: float | None = None) -> None:
        """Finish what was submitted (or cancel what waits), then end all workers. In a callback this does not wait."""
        if not self._can_wait():
            _ending(self.close, cancel, timeout).start()
            return
        if cancel:
            for future in list(self._joint):
                future.cancel()
        else:
            started = monotonic()
            if (let_go := getattr(self._backend, "let_go", None)) is not None:
                let_go()
            wait(list(self._joint), timeout)  # while the pool still takes tasks: a callable that combines outputs may submit some
            timeout = max(0.0, timeout - (monotonic() - started)) if timeout is not None else None
        self._backend.close(cancel, timeout)

    def has_open_tasks(self) -> bool:
        """Whether anything that was submitted waits or runs."""
        return self._backend.has_open_tasks()

    def await_at_close(self, future: Future[Any]) -> None:
        """Make `close` wait for this future, which is put together from results of this pool."""
        self._joint.add(future)
        future.add_done_callback(self._joint.discard)

    def __reduce__(self) -> NoReturn:
        raise Unsendable("a pool cannot be sent to another process, nor copied: make it in the process that uses it")

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(cancel=kind is not None, timeout=None if kind is None else 5)

    def __del__(self) -> None:
        """No reference to the pool is left. The caller may still hold futures, so open tasks are done first."""
        backend: Backend | None = getattr(self, "_backend", None)
        if backend is None or backend.is_closed:
            return
        if not sys.is_finalizing() and (not self._can_wait() or backend.has_open_tasks()):
            ending = _ending(backend.close, False, None)
            try:
                ending.start()
            except RuntimeError:  # the interpreter is about to end, and makes no more threads
                pass
            else:
                _ENDING.add(ending)
                return
        backend.close(cancel=True, timeout=0)

    def read_in(self, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
        """For servers: the loop in whose thread this is called reads the workers' answers itself, which saves a switch of threads for each.
        The function that comes back ends that; call it in the same thread, before the loop is closed."""
        read_in: Callable[[asyncio.AbstractEventLoop], Callable[[], None]] | None = getattr(self._backend, "read_in", None)
        return read_in(loop) if read_in is not None else lambda: None

    @property
    def is_closed(self) -> bool:
        return self._backend.is_closed

    @property
    def can_change(self) -> bool:
        """Whether models can be added, removed and reloaded while it runs."""
        return isinstance(self._backend, Growing)

    def _can_wait(self) -> bool:
        can_wait_here: Callable[[], bool] | None = getattr(self._backend, "can_wait_here", None)
        return threading.current_thread().name != COMBINES and (can_wait_here is None or can_wait_here())

    def _growing(self, what: str) -> Growing:
        if not isinstance(self._backend, Growing):
            raise UsageError(f"no model can be {what} while this engine runs", next=("name all models when the pool is made",))
        return self._backend

    def _state(self, model: str) -> ModelState:
        state = self._states.get(model)
        if state is None:
            raise UsageError(f"the pool has no model {model!r}", why=f"it has {', '.join(self._states)}")
        return state


def _checked(models: Mapping[str, Any]) -> dict[str, Model]:
    check_models(models)
    found = {name: model if isinstance(model, Model) else Model(model) for name, model in models.items()}
    for name, model in found.items():
        model.check(name)
    return found


def _ending(close: Callable[..., None], *how: Any) -> threading.Thread:
    return threading.Thread(target=close, args=how, name="rankwise-end", daemon=True)


def _dtype_name(dtype: Any) -> tuple[str, bool]:
    if type(dtype).__module__ == "torch":
        name, as_tensor = name_of_torch(dtype), True
    else:
        try:
            name = dtype if dtype in NUMPY else name_of_numpy(np.dtype(dtype))
        except TypeError:
            name = ""
        as_tensor = name not in SHARED
    if not name:
        raise UsageError(f"{dtype!r} cannot lie in lane memory")
    return name, as_tensor


def _finish_all() -> None:
    """At the end of the interpreter, finish what was submitted, as the standard library's executors do; but not after a Ctrl-C."""
    try:
        if KeyboardInterrupt not in (getattr(sys, "last_type", None), sys.exc_info()[0]):  # what the script, or a process of it, ended with
            for pool in list(_LIVE):
                pool.close()
            for thread in list(_ENDING):
                thread.join()
    finally:
        for pool in list(_LIVE):
            pool.close(cancel=True, timeout=0)


def _forget_in_child() -> None:
    for pool in list(_LIVE):
        pool._backend.forget_after_fork()
        pool._joint.clear()
    _LIVE.clear()


os.register_at_fork(after_in_child=_forget_in_child)
