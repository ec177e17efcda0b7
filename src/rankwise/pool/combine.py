"""The uses people run many models for: ensembles, weighted splits, routers. Each has `submit` and `map` like the pool."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.errors import UsageError
from rankwise.pool.arguments import check_number, check_window
from rankwise.pool.merging import MERGES
from rankwise.pool.seeds import checked_seed, seed_of
from rankwise.pool.stream import PATIENCE_S, WINDOW, failed
from rankwise.pool.verdicts import PoolFull

if TYPE_CHECKING:
    from rankwise.pool.pool import Pool

Combine = str | Callable[[list[Any]], Any]
Key = str | int | bytes


class Ensemble:
    """All models on the same input; their outputs combined."""

    def __init__(self, pool: Pool, models: Iterable[str], combine: Combine) -> None:
        self._pool, self._models = pool, _known(pool, models)
        self._turns: Turns | None = None
        if isinstance(combine, str) and combine in MERGES:
            self._combine = MERGES[combine]
        elif callable(combine):
            self._combine, self._turns = combine, Turns()
        else:
            raise UsageError(f"there is no way to combine called {combine!r}", why=f"there are {', '.join(MERGES)}, or any callable")

    def submit(self, *inputs: Any, deadline_s: float | None = None, priority: int = 0, seed: int | None = None) -> Future[Any]:
        parts: list[Future[Any]] = []
        seed = checked_seed(seed)
        try:
            for number, model in enumerate(self._models):
                own = seed_of(seed, number)
                parts.append(self._pool.submit(model, *inputs, deadline_s=deadline_s, priority=priority, seed=own))
        except BaseException:
            for part in parts:
                part.cancel()
            raise
        return self._whole(parts)

    def map(self, inputs: Iterable[Any], window: int | None = None) -> Iterator[Any]:
        return _map(self._pool, self.submit, inputs, window)

    def _whole(self, parts: list[Future[Any]]) -> Future[Any]:
        whole = Joint(parts)
        missing, lock = [len(parts)], threading.Lock()

        def combine() -> None:
            if not whole.set_running_or_notify_cancel():
                return
            try:
                outputs = [part.result() for part in parts]
                parts.clear()  # they know us, and we them: all outputs would wait for the garbage collector
                whole.set_result(self._combine(outputs))
            except BaseException as error:
                whole.set_exception(error)
            finally:
                parts.clear()

        def on_done(_: Future[Any]) -> None:
            with lock:
                missing[0] -= 1
                if missing[0]:
                    return
            if self._turns is None:
                combine()
            else:
                self._turns.add(combine)

        self._pool.await_at_close(whole)
        for part in list(parts):
            part.add_done_callback(on_done)
        return whole


class Joint(Future[Any]):
    """What several futures make together. To cancel it is to cancel them; one that runs already finishes for nobody."""

    def __init__(self, parts: list[Future[Any]]) -> None:
        super().__init__()
        self._parts = parts

    def cancel(self) -> bool:
        if not super().cancel():
            return False
        for part in list(self._parts):
            part.cancel()
        return True


class Turns:
    """Runs the user's function in a thread of its own, one call after the other: it may take its time and use the pool, while the
    thread that looks after all workers goes on. The thread is there only while there is something to do."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._is_running = False

    def add(self, call: Callable[[], None]) -> None:
        with self._lock:
            self._calls.append(call)
            if self._is_running:
                return
            self._is_running = True
        try:
            threading.Thread(target=self._run, name="rankwise-combine", daemon=True).start()
        except RuntimeError:  # the interpreter is about to end, and makes no more threads
            self._run()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._calls:
                    self._is_running = False
                    return
                call = self._calls.popleft()
            call()


class Split:
    """One of several models by weight; the same key always gets the same one."""

    def __init__(self, pool: Pool, weights: Mapping[str, float]) -> None:
        if not isinstance(weights, Mapping):
            raise UsageError(f"the weights of a split are a dict, not {weights!r}", next=('pool.split({"old": 0.9, "new": 0.1})',))
        self._pool, self._models = pool, _known(pool, weights)
        for model, weight in weights.items():
            check_number(f"the weight of {model!r}", weight, least=0)
        total = sum(weights.values())
        if not total > 0:
            raise UsageError(f"the weights {dict(weights)} do not say how to split", next=("give at least one model a share above 0",))
        shares = np.cumsum([weights[model] for model in self._models]) / total
        self._shares = [float(share) for share in shares]

    def choose(self, key: Key | None = None) -> str:
        """The model for this key; without one, any, by weight."""
        if key is None:
            point = random.random()
        else:
            data = key if isinstance(key, bytes) else str(key).encode()
            point = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") / 2**64
        return next((model for model, share in zip(self._models, self._shares) if point < share), self._models[-1])

    def submit(self, *inputs: Any, key: Key | None = None, **options: Any) -> Future[Any]:
        return self._pool.submit(self.choose(key), *inputs, **options)

    def map(self, inputs: Iterable[Any], window: int | None = None, key: Callable[..., Key] | None = None) -> Iterator[Any]:
        """`key(*inputs)` names the key of each."""
        return _map(self._pool, lambda *given: self.submit(*given, key=key(*given) if key is not None else None), inputs, window)


class Router:
    """The model a callable names for each input."""

    def __init__(self, pool: Pool, choose: Callable[..., str]) -> None:
        if not callable(choose):
            raise UsageError(f"a router is a callable that names a model for its inputs, not {choose!r}")
        self._pool, self._choose = pool, choose

    def submit(self, *inputs: Any, deadline_s: float | None = None, priority: int = 0, seed: int | None = None) -> Future[Any]:
        return self._pool.submit(self._choose(*inputs), *inputs, deadline_s=deadline_s, priority=priority, seed=seed)

    def map(self, inputs: Iterable[Any], window: int | None = None) -> Iterator[Any]:
        return _map(self._pool, self.submit, inputs, window)


def _known(pool: Pool, models: Iterable[str]) -> list[str]:
    if isinstance(models, str):
        raise UsageError(f"the models are a list of names, not one string ({models!r})", next=(f"[{models!r}]",))
    names = list(models)
    if not names:
        raise UsageError("no models were named", why=f"the pool has {', '.join(pool.models)}")
    for name in names:
        if name not in pool.models:
            raise UsageError(f"the pool has no model {name!r}", why=f"it has {', '.join(pool.models)}")
    return names


def _map(pool: Pool, submit: Callable[..., Future[Any]], inputs: Iterable[Any], window: int | None) -> Iterator[Any]:
    check_window(window)
    return _results(pool, submit, inputs, window or WINDOW)


def _results(pool: Pool, submit: Callable[..., Future[Any]], inputs: Iterable[Any], window: int) -> Iterator[Any]:
    """In order; what goes wrong on the way in has its place among the results."""
    waiting: deque[Future[Any]] = deque()
    source = iter(inputs)
    try:
        while True:
            try:
                item = next(source)
            except StopIteration:
                break
            except Exception as error:  # the end of the source
                waiting.append(failed(error))
                break
            while len(waiting) >= window:
                yield waiting.popleft().result()
            is_hopeless = False
            while True:
                try:
                    waiting.append(submit(*(item if isinstance(item, tuple) else (item,))))
                    break
                except PoolFull as error:  # first our own have to be done, then others'
                    if waiting:
                        yield waiting.popleft().result()
                    elif is_hopeless:
                        waiting.append(failed(error))
                        break
                    else:
                        is_hopeless = not pool.has_open_tasks()
                        time.sleep(PATIENCE_S)
                except Exception as error:
                    waiting.append(failed(error))
                    break
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
