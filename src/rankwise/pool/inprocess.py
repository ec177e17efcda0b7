"""`workers=0`: the models run in the caller's process, for debugging and for the least overhead.

Inputs and outputs are packed and unpacked as for a worker, though nothing leaves the process: the model gets copies of its inputs, and
results have the types that a worker's would have.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from rankwise.pool.api.model import Model
from rankwise.pool.api.streams import StreamOptions, failed
from rankwise.pool.backend import PoolOptions, Requests, plan_workers, states_of, this_machine
from rankwise.pool.errors import Unsendable, build_failed, deadline_exceeded, pool_closed
from rankwise.pool.memory.encoding import Node, as_array, given, pack, stays_tensor, unpack
from rankwise.pool.memory.exceptions import NOT_IN_A_LOOP, failure, raised
from rankwise.pool.memory.requests import not_sendable, wants_tensors
from rankwise.pool.schedule.state import ModelState, PoolPlan, derived, seed_of
from rankwise.pool.stats import Counters
from rankwise.pool.workers.lanes import copy_place, to_value
from rankwise.pool.workers.model_building import BuiltModel, load, seeded
from rankwise.pool.workers.row_checks import RowChecker
from rankwise.pool.workers.runner import Runner


class NotSent(Exception):
    """The input could not be sent to a worker either; the cause says why."""


def start(models: dict[str, Model], options: PoolOptions) -> InProcess:
    here = this_machine()
    states = states_of(models, here.gpus)
    wants_gpu = any(model.device != "cpu" for model in models.values())
    plan = plan_workers(here, 1, wants_gpu, options.threads, options.pin)
    return InProcess({name: _spec(model, states[name], options.seed) for name, model in models.items()}, states, plan, options)


def _spec(model: Model, state: ModelState, seed: int | None) -> bytes:
    device = model.device if ":" in model.device else state.device
    return model.spec(state.name, device, derived(seed, "model", state.name) if seed is not None else None)


class InProcess:
    """A `Backend` that runs each task in the thread that submits it, one at a time."""

    def __init__(self, specs: dict[str, bytes], states: dict[str, ModelState], plan: PoolPlan, options: PoolOptions) -> None:
        self._specs, self.models, self.plan, self._options = specs, states, plan, options
        self._loaded: dict[str, BuiltModel] = {}
        self._broken: dict[str, Exception] = {}
        self._lock = threading.RLock()  # a callback of one task may submit the next
        self._runner = Runner(RowChecker())
        self.counters = Counters(list(specs))
        self.is_closed = False

    def submit(self, state: ModelState, inputs: tuple[Any, ...], deadline_s: float | None, priority: int, seed: int | None) -> Future[Any]:
        model = state.name
        if self.is_closed:
            raise pool_closed()
        if deadline_s is not None and not deadline_s > 0:
            return self._late(model, deadline_s, was_running=False)
        started = time.monotonic()
        with self._lock:
            try:
                loaded = self._loaded.get(model) or self._load(model)
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
                return failed(error if travels else raised(failure(error), model))
        seconds = time.monotonic() - started
        if deadline_s is not None and seconds > deadline_s:
            return self._late(model, deadline_s, was_running=True)
        self.counters.of(model).did_one(seconds, int(1e9 * seconds))
        return _done(result)

    def stream(self, requests: Requests, options: StreamOptions) -> Iterator[Any]:
        for number, (model, inputs) in enumerate(requests):
            yield self.submit(model, tuple(inputs), options.deadline_s, options.priority, seed_of(options.seed, number)).result()

    def load(self, state: ModelState) -> Future[Any]:
        if self.is_closed:
            raise pool_closed()
        model = state.name
        with self._lock:
            self._broken.pop(model, None)
            try:
                self._loaded.get(model) or self._load(model)
            except Exception as error:
                return failed(error)
        return _done(None)

    def unload(self, model: ModelState) -> None:
        with self._lock:
            self._broken.pop(model.name, None)
            if self._loaded.pop(model.name, None) is not None:
                self.counters.of(model.name).evictions += 1

    def add(self, name: str, model: Model) -> None:
        state = states_of({name: model}, this_machine().gpus)[name]
        with self._lock:
            self._specs[name] = _spec(model, state, self._options.seed)
            self.counters.add(name)
            self.models[name] = state

    def reload(self, name: str, model: Model) -> Future[Any]:
        spec = _spec(model, self.models[name], self._options.seed)
        with self._lock:
            try:
                loaded = load(pickle.loads(spec), is_worker=False)
            except Exception as error:
                return failed(build_failed(name, traceback.format_exc(), 1, error))
            self._specs[name], self._loaded[name] = spec, loaded
            self._broken.pop(name, None)
        self.counters.of(name).loads += 1
        return _done(None)

    def remove(self, name: str) -> None:
        self.unload(self.models[name])
        with self._lock:
            del self.models[name], self._specs[name]
            self.counters.forget(name)

    def empty(self, shape: tuple[int, ...], dtype: str, as_tensor: bool) -> Any:
        """An array in ordinary memory; this engine has no shared memory."""
        if self.is_closed:
            raise pool_closed()
        return torch.empty(shape, dtype=getattr(torch, dtype)) if as_tensor else np.empty(shape, dtype)

    def stats(self) -> dict[str, Any]:
        """The statistics in the form of a pool with workers; nothing waits here, and there are no lanes."""
        lanes = {"inputs_used_bytes": 0, "inputs_bytes": 0}
        none = {"queued": 0, "running": 0, "max_batch": 1, "batch_cost_s": None}
        models = {}
        for name in list(self._specs):
            model, broken = self._loaded.get(name), self._broken.get(name)
            size = {"replicas": int(model is not None), "memory_bytes": model.nbytes if model is not None else None}
            state = {"state": "failed", "finding": str(broken).partition("\n")[0]} if broken else {"state": "ok", "finding": None}
            models[name] = {**none, **size, **state, **self.counters.of(name).to_dict()}
        return {"pid": os.getpid(), "plan": "in this process", "models": models, "workers": [], "restarts": 0, "lanes": lanes}

    def has_open_tasks(self) -> bool:
        """Always False: each task is over when `submit` returns, so there is never one to wait for."""
        return False

    def close(self, cancel: bool, timeout: float | None) -> None:
        self.is_closed = True
        self._loaded.clear()

    def forget_after_fork(self) -> None:
        """The child has a copy of the models, and may use it."""

    def _late(self, model: str, deadline_s: float, was_running: bool) -> Future[Any]:
        self.counters.of(model).expired += 1
        self.counters.of(model).failed += 1
        return failed(deadline_exceeded(model, deadline_s, was_running))

    def _run(self, model: BuiltModel, inputs: tuple[Any, ...]) -> Any:
        is_entered = torch.is_inference_mode_enabled()  # by the caller; entering it once more would take as long as a small layer
        with nullcontext() if is_entered else torch.inference_mode():
            output = self._output(model, inputs)
        if isinstance(output, torch.Tensor):
            return output.clone()  # a copy made outside of inference mode, so the caller may change it and train with it
        as_tensors = wants_tensors(inputs)

        def get(place: Any, dtype: str, shape: tuple[int, ...], is_tensor: bool) -> Any:
            is_tensor = is_tensor and stays_tensor(dtype, as_tensors)
            return as_array(bytearray(place), dtype, shape, is_tensor) if type(place) is bytes else given(place, dtype, is_tensor)

        return unpack(output, get)

    def _output(self, model: BuiltModel, inputs: tuple[Any, ...]) -> Node | torch.Tensor:
        """The model's output as a node. In the usual case, one plain tensor in and one out, the output stays a tensor, which is quicker."""
        if len(inputs) == 1 and model.is_plain and _is_plain(inputs[0]):
            output = model.run(inputs[0].clone())
            return output if _is_plain(output) else pack(output, copy_place)
        try:
            node = pack(inputs, copy_place)
        except Unsendable as error:
            raise NotSent from error
        return pack(self._runner.call(model, unpack(node, to_value)), copy_place)

    def _load(self, name: str) -> BuiltModel:
        if name in self._broken:
            raise self._broken[name]
        try:
            self._loaded[name] = model = load(pickle.loads(self._specs[name]), is_worker=False)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._broken[name] = build_failed(name, traceback.format_exc(), 1, error)
            raise self._broken[name] from error
        self.counters.of(name).loads += 1
        return model


def _done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future


def _is_plain(value: Any) -> bool:
    """Whether a clone of the value equals a copy made by way of its bytes: a plain, contiguous tensor on the CPU."""
    if type(value) is not torch.Tensor or value.layout is not torch.strided or not value.is_cpu or value.is_nested or value.is_quantized:
        return False
    return value.is_contiguous() and not (value.requires_grad or value.is_conj() or value.is_neg())
