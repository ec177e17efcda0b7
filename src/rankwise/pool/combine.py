"""The uses people run many models for: ensembles, weighted splits, routers. Each has `submit` and `map` like the pool."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.errors import UsageError
from rankwise.pool.dtypes import torch_module

if TYPE_CHECKING:
    from rankwise.pool.pool import Pool

Combine = str | Callable[[list[Any]], Any]


class Ensemble:
    """All models on the same input; their outputs combined."""

    def __init__(self, pool: Pool, models: Iterable[str], combine: Combine) -> None:
        self._pool, self._models = pool, _known(pool, list(models))
        if isinstance(combine, str) and combine not in _COMBINERS:
            raise UsageError(f"there is no way to combine called {combine!r}", why=f"there are {', '.join(_COMBINERS)}, or any callable")
        self._combine = _COMBINERS[combine] if isinstance(combine, str) else combine

    def submit(self, *inputs: Any, deadline_s: float | None = None, priority: int = 0) -> Future[Any]:
        parts = [self._pool.submit(model, *inputs, deadline_s=deadline_s, priority=priority) for model in self._models]
        whole: Future[Any] = Future()
        whole.set_running_or_notify_cancel()
        missing, lock = [len(parts)], threading.Lock()

        def on_done(_: Future[Any]) -> None:
            with lock:
                missing[0] -= 1
                if missing[0]:
                    return
            try:
                whole.set_result(self._combine([part.result() for part in parts]))
            except BaseException as error:
                whole.set_exception(error)

        for part in parts:
            part.add_done_callback(on_done)
        return whole

    def map(self, inputs: Iterable[Any], window: int = 64) -> Iterator[Any]:
        return _map(self.submit, inputs, window)


class Split:
    """One of several models by weight; the same key always gets the same one."""

    def __init__(self, pool: Pool, weights: Mapping[str, float]) -> None:
        self._pool, self._models = pool, _known(pool, list(weights))
        total = sum(weights.values())
        if total <= 0 or min(weights.values()) < 0:
            raise UsageError(f"the weights {dict(weights)} do not say how to split", next=("give each model a share of at least 0",))
        shares = np.cumsum([weights[model] for model in self._models]) / total
        self._shares = [float(share) for share in shares]

    def choose(self, key: str | int | bytes | None = None) -> str:
        """The model for this key; without one, any, by weight."""
        if key is None:
            point = random.random()
        else:
            data = key if isinstance(key, bytes) else str(key).encode()
            point = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") / 2**64
        return next((model for model, share in zip(self._models, self._shares) if point < share), self._models[-1])

    def submit(self, *inputs: Any, key: str | int | bytes | None = None, **options: Any) -> Future[Any]:
        return self._pool.submit(self.choose(key), *inputs, **options)


class Router:
    """The model a callable names for each input."""

    def __init__(self, pool: Pool, choose: Callable[..., str]) -> None:
        self._pool, self._choose = pool, choose

    def submit(self, *inputs: Any, deadline_s: float | None = None, priority: int = 0) -> Future[Any]:
        return self._pool.submit(self._choose(*inputs), *inputs, deadline_s=deadline_s, priority=priority)

    def map(self, inputs: Iterable[Any], window: int = 64) -> Iterator[Any]:
        return _map(self.submit, inputs, window)


def mean(outputs: list[Any]) -> Any:
    """Of tensors, arrays and numbers, anywhere in the same nested structure."""
    first = outputs[0]
    if type(first) in (list, tuple):
        return type(first)([mean([output[i] for output in outputs]) for i in range(len(first))])
    if type(first) is dict:
        return {key: mean([output[key] for output in outputs]) for key in first}
    return sum(outputs[1:], start=first) / len(outputs)


def vote(outputs: list[Any]) -> Any:
    """The class most models are for: of labels (integers), or of scores, whose largest counts. Where it is a draw, the lowest label."""
    arrays = [np.asarray(output) for output in outputs]
    labels = np.stack([array.argmax(-1) if array.dtype.kind == "f" else array for array in arrays])
    flat = labels.reshape(len(labels), -1)
    winners = np.array([np.bincount(column).argmax() for column in flat.T], labels.dtype).reshape(labels.shape[1:])
    torch = torch_module()
    return torch.from_numpy(winners) if torch is not None and isinstance(outputs[0], torch.Tensor) else winners


_COMBINERS: dict[str, Callable[[list[Any]], Any]] = {"mean": mean, "vote": vote}


def _known(pool: Pool, models: list[str]) -> list[str]:
    if not models:
        raise UsageError("no models were named", why=f"the pool has {', '.join(pool.models)}")
    for model in models:
        if model not in pool.models:
            raise UsageError(f"the pool has no model {model!r}", why=f"it has {', '.join(pool.models)}")
    return models


def _map(submit: Callable[..., Future[Any]], inputs: Iterable[Any], window: int) -> Iterator[Any]:
    waiting: list[Future[Any]] = []
    for item in inputs:
        waiting.append(submit(*(item if isinstance(item, tuple) else (item,))))
        if len(waiting) >= window:
            yield waiting.pop(0).result()
    for future in waiting:
        yield future.result()
