"""What `Pool` needs of an engine. To add one: implement `Backend`, and name its `start` in `ENGINES`."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from rankwise.errors import UsageError
from rankwise.pool.api.model import Model
from rankwise.pool.machine import Plan
from rankwise.pool.schedule.state import ModelState
from rankwise.pool.stats import Counters

Requests = Iterator[tuple[ModelState, Sequence[Any]]]  # model and inputs, one after the other
ENGINES = {"processes": "rankwise.pool.processes", "ray": "rankwise.pool.ray.engine"}


@dataclass(frozen=True)
class PoolOptions:
    """The keyword arguments of `Pool`, checked."""

    workers: int | str = "auto"
    memory: int | str | Mapping[str, int | str] | None = None
    max_queue: int = 10_000
    idle_s: float | None = None
    threads: int | None = None
    pin: bool = False
    lane_bytes: int | str | None = None
    seed: int | None = None
    address: str | None = None  # of the cluster, where the engine is one


class Backend(Protocol):
    """Runs tasks somewhere. `Pool` has checked all arguments, and calls from any thread."""

    models: Mapping[str, ModelState]
    plan: Plan  # who works where, and why so many
    counters: Counters

    @property
    def is_closed(self) -> bool: ...

    def submit(self, model: ModelState, inputs: tuple[Any, ...], deadline_s: float | None, priority: int, seed: int | None) -> Future[Any]:
        """Raises PoolFull rather than wait, and PoolClosed after `close`."""
        ...

    def stream(
        self, requests: Requests, window: int | None, deadline_s: float | None, priority: int, seed: int | None, length: int
    ) -> Iterator[Any]:
        """Results in the order of the requests; `length` is 0 where the source does not know its own."""
        ...

    def load(self, model: ModelState) -> Future[None]:
        """Done when a worker has the model."""
        ...

    def unload(self, model: ModelState) -> None: ...

    def empty(self, shape: tuple[int, ...], dtype: str, as_tensor: bool) -> Any:
        """Memory whose content is submitted without a copy, where the engine has such."""
        ...

    def stats(self) -> dict[str, Any]: ...

    def has_open_tasks(self) -> bool: ...

    def close(self, cancel: bool, timeout: float | None) -> None:
        """Finish what was submitted (or cancel what waits), then let go of everything."""
        ...

    def forget_after_fork(self) -> None:
        """In a forked child, where nothing of the parent's engine may be used or closed."""
        ...


@runtime_checkable
class Growing(Protocol):
    """An engine whose models may come and go while it runs."""

    def add(self, name: str, model: Model) -> None: ...

    def remove(self, name: str) -> None:
        """It takes no more tasks; those it has are done first."""
        ...

    def reload(self, name: str, model: Model) -> Future[None]:
        """Done when the new one has taken the old one's place; where it cannot be had, the old one stays."""
        ...


@runtime_checkable
class ReadInLoop(Protocol):
    """An engine whose answers an asyncio loop may read itself, which saves a switch of threads for each."""

    def read_in(self, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
        """From now on, until what is returned is called; both in the loop's own thread."""
        ...


def start(engine: str, models: dict[str, Model], options: PoolOptions) -> Backend:
    """The engine of this name; `workers=0` is the caller's own process."""
    home = "rankwise.pool.inprocess" if options.workers == 0 and engine == "processes" else ENGINES[engine]
    backend: Backend = importlib.import_module(home).start(models, options)
    return backend


def states_of(models: dict[str, Model], gpus: tuple[str, ...], first: int = 0) -> dict[str, ModelState]:
    """What is kept about each model, with the device it may run on; they are numbered from `first` on."""
    return {
        name: ModelState(
            number=number,
            name=name,
            device=_device_of(name, model, gpus),
            replicas=model.replicas,
            max_batch=model.max_batch,
            max_delay_s=model.max_delay_ms / 1000,
            nbytes=model.expected_bytes,
            limit_s=model.limit_s,
        )
        for number, (name, model) in enumerate(models.items(), first)
    }


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
