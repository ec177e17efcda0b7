"""`workers=0`: the models in this very process, for debugging and for the shortest way of all.

Values go through the same packing as on their way to a worker and back, only that nothing leaves the process: the model gets copies, and
what it returns comes back as it would from there.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from rankwise.errors import RankwiseError, whole_text
from rankwise.pool.child.chance import seeded
from rankwise.pool.child.failures import failure
from rankwise.pool.child.inputs import copied, seen
from rankwise.pool.child.models import Loaded, load
from rankwise.pool.child.running import Runner
from rankwise.pool.dtypes import CARRIED
from rankwise.pool.exceptions import NOT_IN_A_LOOP, Unsendable
from rankwise.pool.inlet import not_sendable, wants_tensors
from rankwise.pool.lease import to_tensor
from rankwise.pool.parcel import Node, as_array, pack, stays_tensor, unpack, widened
from rankwise.pool.results import raised
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


class NotSent(Exception):
    """An input that no worker would be given either; why is its cause."""


class InProcess:
    """Runs each task in the thread that submits it, one at a time."""

    def __init__(self, specs: Mapping[str, bytes]) -> None:
        self._specs = specs
        self._models: dict[str, Loaded] = {}
        self._broken: dict[str, Exception] = {}
        self._lock = threading.RLock()  # a callback of one task may submit the next
        self._runner = Runner()
        self.counters = Counters(list(specs))
        self.is_closed = False

    def submit(self, model: str, inputs: tuple[Any, ...], deadline_s: float | None = None, seed: int | None = None) -> Future[Any]:
        if self.is_closed:
            raise pool_closed()
        if deadline_s is not None and not deadline_s > 0:
            return self._late(model, deadline_s, was_running=False)
        started = time.monotonic()
        with self._lock:
            try:
                loaded = self._models.get(model) or self._load(model)
                with seeded(seed) if seed is not None else nullcontext():
                    result = self._run(loaded, inputs)
            except KeyboardInterrupt:  # the user's own Ctrl-C
                raise
            except NotSent as refused:
                assert isinstance(refused.__cause__, Unsendable)
                raise not_sendable(model, refused.__cause__) from refused.__cause__.__cause__
            except BaseException as error:
                self.counters.of(model).failed += 1
                travels = isinstance(error, Exception) and not isinstance(error, (Unsendable, *NOT_IN_A_LOOP))
                return Done(None, error if travels else raised(failure(error), model))
        seconds = time.monotonic() - started
        if deadline_s is not None and seconds > deadline_s:
            return self._late(model, deadline_s, was_running=True)
        self.counters.of(model).did_one(seconds, int(1e9 * seconds))
        return Done(result, None)

    def load_now(self, model: str) -> Future[Any]:
        if self.is_closed:
            raise pool_closed()
        with self._lock:
            self._broken.pop(model, None)
            try:
                self._models.get(model) or self._load(model)
            except Exception as error:
                return Done(None, error)
        return Done(None, None)

    def unload(self, model: str) -> None:
        with self._lock:
            self._broken.pop(model, None)
            if self._models.pop(model, None) is not None:
                self.counters.of(model).evictions += 1

    def empty(self, shape: tuple[int, ...], dtype: str, as_tensor: bool) -> Any:
        """Ordinary memory: there is no lane here."""
        if self.is_closed:
            raise pool_closed()
        return torch.empty(shape, dtype=getattr(torch, dtype)) if as_tensor else np.empty(shape, dtype)

    def stats(self) -> dict[str, Any]:
        """As a pool with workers tells it; nothing waits here, and there are no lanes."""
        lanes = {"inputs_used_bytes": 0, "inputs_bytes": 0}
        models = {name: self._numbers(name) for name in self._specs}
        return {"pid": os.getpid(), "plan": "in this process", "models": models, "workers": [], "restarts": 0, "lanes": lanes}

    def _numbers(self, name: str) -> dict[str, Any]:
        model = self._models.get(name)
        return {
            "queued": 0,
            "running": 0,
            "replicas": int(model is not None),
            "memory_bytes": model.nbytes if model is not None else None,
            "max_batch": 1,
            "batch_cost_s": None,
            "state": "failed" if name in self._broken else "ok",
            "finding": str(self._broken[name]).partition("\n")[0] if name in self._broken else None,
            **self.counters.of(name).to_dict(),
        }

    def close(self) -> None:
        self.is_closed = True
        self._models.clear()

    def _late(self, model: str, deadline_s: float, was_running: bool) -> Future[Any]:
        self.counters.of(model).expired += 1
        self.counters.of(model).failed += 1
        return Done(None, deadline_exceeded(model, deadline_s, was_running))

    def _run(self, model: Loaded, inputs: tuple[Any, ...]) -> Any:
        if torch.is_inference_mode_enabled():  # by the caller: to enter it once more takes as long as a small layer
            output = self._output(model, inputs)
            if isinstance(output, torch.Tensor):
                return output if _is_new(output) else output.clone()
        else:
            with torch.inference_mode():
                output = self._output(model, inputs)
            if isinstance(output, torch.Tensor):
                return output.clone()  # outside of inference mode: it may be changed and trained with
        as_tensors = wants_tensors(inputs)

        def get(place: Any, dtype: str, shape: tuple[int, ...], is_tensor: bool) -> Any:
            is_tensor = is_tensor and stays_tensor(dtype, as_tensors)
            if type(place) is bytes:
                return as_array(bytearray(place), dtype, shape, is_tensor)
            if is_tensor:
                return to_tensor(place, dtype)
            return widened(place, dtype) if dtype in CARRIED else place

        return unpack(output, get)

    def _output(self, model: Loaded, inputs: tuple[Any, ...]) -> Node | torch.Tensor:
        """What the model gave, as a node; where one tensor gives one tensor, which is the usual case, by the shortest way."""
        if len(inputs) == 1 and model.is_plain and _is_plain(inputs[0]):
            output = model.run(inputs[0].clone())
            return output if _is_plain(output) else pack(output, copied)
        try:
            node = pack(inputs, copied)
        except Unsendable as error:
            raise NotSent from error
        return pack(self._runner.call(model, unpack(node, seen)), copied)

    def _load(self, name: str) -> Loaded:
        if name in self._broken:
            raise self._broken[name]
        try:
            self._models[name] = model = load(pickle.loads(self._specs[name]), is_worker=False)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            text = whole_text(error.finding) if isinstance(error, RankwiseError) else traceback.format_exc()
            self._broken[name] = build_failed(name, text, 1)
            raise self._broken[name] from error
        self.counters.of(name).loads += 1
        return model


def _is_plain(value: Any) -> bool:
    """A tensor of which a clone is the same as a copy by way of its bytes."""
    if type(value) is not torch.Tensor or value.layout is not torch.strided or not value.is_cpu:
        return False
    return value.is_contiguous() and not value.is_conj() and not value.is_neg()


def _is_new(output: torch.Tensor) -> bool:
    """Nobody else has this tensor or its memory: the model keeps neither, nor is it a part of something that does."""
    return sys.getrefcount(output) == _OWN_REFERENCES and _uses(output.untyped_storage()._cdata) == _OWN_USES


def _references_of_one() -> int:
    """As `_is_new` counts those of a tensor that only its caller has; it depends on the version of Python."""

    def count(output: torch.Tensor) -> int:
        return sys.getrefcount(output)

    output = torch.empty(1)
    return count(output)


_uses: Callable[[int], int] = torch._C._storage_Use_Count
_OWN_USES = 2  # the tensor, and the storage as it was asked for
_OWN_REFERENCES = _references_of_one()
