"""`workers=0`: the models in this very process, for debugging and for the shortest way of all."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch

from rankwise.errors import RankwiseError, whole_text
from rankwise.pool.child.models import Loaded, load, to_device
from rankwise.pool.stats import Counters
from rankwise.pool.verdicts import build_failed, deadline_exceeded, pool_closed

_no_one_waits = threading.Condition()


class Done(Future[Any]):
    """A future that was never pending, so nobody can ever wait for it: all of them share one condition."""

    def __init__(self, result: Any, error: BaseException | None) -> None:
        self._condition = _no_one_waits
        self._state = "FINISHED"
        self._result, self._exception = result, error
        self._waiters: list[Any] = []
        self._done_callbacks: list[Any] = []

    def result(self, timeout: float | None = None) -> Any:
        return self._result if self._exception is None else super().result(timeout)


class InProcess:
    """Runs each task in the thread that submits it, one at a time."""

    def __init__(self, specs: Mapping[str, bytes]) -> None:
        self._specs = specs
        self._models: dict[str, Loaded] = {}
        self._broken: dict[str, Exception] = {}
        self._lock = threading.RLock()  # a callback of one task may submit the next
        self.counters = Counters(list(specs))
        self.is_closed = False

    def submit(self, model: str, inputs: tuple[Any, ...], deadline_s: float | None = None) -> Future[Any]:
        if self.is_closed:
            raise pool_closed()
        started = time.monotonic()
        with self._lock:
            try:
                result = self._run(self._models.get(model) or self._load(model), inputs)
            except Exception as error:
                self.counters.of(model).failed += 1
                return Done(None, error)
        seconds = time.monotonic() - started
        if deadline_s is not None and seconds > deadline_s:
            return Done(None, deadline_exceeded(model, deadline_s, was_running=True))
        self.counters.of(model).did_one(seconds, int(1e9 * seconds))
        return Done(result, None)

    def empty(self, shape: tuple[int, ...], dtype: str, as_tensor: bool) -> Any:
        """Ordinary memory: there is no lane here."""
        return torch.empty(shape, dtype=getattr(torch, dtype)) if as_tensor else np.empty(shape, dtype)

    def close(self) -> None:
        self.is_closed = True
        self._models.clear()

    def _run(self, model: Loaded, inputs: tuple[Any, ...]) -> Any:
        if len(inputs) == 1 and type(inputs[0]) is torch.Tensor and model.is_plain:
            if torch.is_inference_mode_enabled():  # by the caller: to enter it once more takes as long as a small layer
                return model.run(inputs[0])
            with torch.inference_mode():
                return model.run(inputs[0])
        wants_arrays = False
        if any(type(item) is not torch.Tensor for item in inputs):
            wants_arrays = any(type(item) is np.ndarray for item in inputs)
            inputs = tuple([torch.from_numpy(item) if type(item) is np.ndarray else item for item in inputs])
        with torch.inference_mode():
            if model.device.type == "cpu":
                output = model.run(*inputs)
            else:
                output = to_device(model.run(*[to_device(item, model.device) for item in inputs]), torch.device("cpu"))
        return output.numpy() if wants_arrays and isinstance(output, torch.Tensor) else output

    def _load(self, name: str) -> Loaded:
        if name in self._broken:
            raise self._broken[name]
        try:
            self._models[name] = model = load(pickle.loads(self._specs[name]), is_worker=False)
        except Exception as error:
            text = whole_text(error.finding) if isinstance(error, RankwiseError) else f"{type(error).__name__}: {error}"
            self._broken[name] = build_failed(name, text, 1)
            raise self._broken[name] from error
        self.counters.of(name).loads += 1
        return model
