"""One version of one model as clients see it: what it takes and gives, whether it can be asked, and what it has answered so far."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np

from rankwise.pool import Pool
from rankwise.pool.models_file import Entry, TensorSpec
from rankwise.serve.datatypes import Array, datatype_of, dtype_of
from rankwise.serve.errors import ModelFailed, RequestError, Unavailable, as_request_error
from rankwise.serve.messages import InferRequest, InferResponse

_SIZES = (2, 3)  # of what may have any size, when the model is asked what it gives


class Tally:
    """What was answered; nanoseconds as the protocol has them."""

    def __init__(self) -> None:
        self.succeeded = self.failed = self.succeeded_ns = self.failed_ns = self.rows = self.last_ms = 0

    def add(self, ok: bool, started_ns: int, rows: int) -> None:
        took_ns = time.monotonic_ns() - started_ns
        if ok:
            self.succeeded += 1
            self.succeeded_ns += took_ns
            self.rows += rows
        else:
            self.failed += 1
            self.failed_ns += took_ns
        self.last_ms = time.time_ns() // 1_000_000


class Served:
    """A model of the pool. `threads` run it where the pool has no workers, so that the server goes on listening."""

    platform, backend = "pytorch_module", "pytorch"

    def __init__(self, entry: Entry, pool: Pool, threads: Executor | None) -> None:
        self.name, self.version, self.key, self.preload = entry.name, entry.version, entry.key, entry.preload
        self.max_batch = entry.model.max_batch
        self.inputs, self.outputs = entry.inputs, entry.outputs
        if str(entry.model.build).endswith(".pt2"):
            self.platform = "pytorch_pt2"
        self.state, self.reason = ("LOADING", "") if entry.preload else ("READY", "loaded when it is first asked")
        self.tally = Tally()
        self._pool, self._threads = pool, threads

    # ---- loading

    async def load(self) -> None:
        """Loads it; where it is there already, anew. Raises Unavailable where it cannot be had."""
        if self.state == "READY":
            self._pool.unload(self.key)
        self.state, self.reason = "LOADING", ""
        try:
            await asyncio.wrap_future(self._called(self._pool.load, self.key))
            await self._learn_outputs()
        except Exception as error:
            self.state, self.reason = "UNAVAILABLE", str(as_request_error(error, self.name))
            raise Unavailable(self.reason) from error
        self.state = "READY"

    def unload(self) -> None:
        self._pool.unload(self.key)
        self.state, self.reason = "UNAVAILABLE", "unloaded"

    async def _learn_outputs(self) -> None:
        """Where nobody said what it gives: it is asked twice with zeros, and what differs in size may have any."""
        if self.outputs or not self.inputs or any(spec.datatype == "BYTES" for spec in self.inputs):
            return
        try:
            seen = [self._named(await self.run(self._zeros(size), 60.0, 0)) for size in _SIZES]
        except Exception:  # zeros are not what it takes; then clients find out with the first answer
            return
        first, second = seen
        if len(first) == len(second) and all(a[2].ndim == b[2].ndim for a, b in zip(first, second)):
            self.outputs = tuple(
                TensorSpec(name, datatype, tuple([m if m == n else -1 for m, n in zip(array.shape, other.shape)]))
                for (name, datatype, array), (_, _, other) in zip(first, second)
            )

    def _zeros(self, size: int) -> list[Array]:
        return [np.zeros([size if n == -1 else n for n in spec.shape], dtype_of(spec.datatype)) for spec in self.inputs]

    # ---- answering

    async def infer(self, request: InferRequest) -> InferResponse:
        """Raises RequestError and nothing else; cancelling it cancels the task."""
        started_ns, rows, ok = time.monotonic_ns(), 1, False
        try:
            arrays = self._checked(request)
            rows = arrays[0].shape[0] if self.max_batch > 1 and arrays[0].ndim else 1
            result = await self.answer(arrays, request)
            outputs = self._named(result)
            if request.outputs is not None:
                outputs = _chosen(outputs, request.outputs)
            ok = True
            return InferResponse(self.name, self.version, request.id, outputs)
        except Exception as error:
            raise as_request_error(error, self.name) from error
        finally:
            self.tally.add(ok, started_ns, rows)

    async def answer(self, arrays: list[Array], request: InferRequest) -> Any:
        return await self.run(arrays, request.deadline_s(), request.priority())

    async def run(self, arrays: list[Array], deadline_s: float | None, priority: int) -> Any:
        return await asyncio.wrap_future(self._called(self._pool.submit, self.key, *arrays, deadline_s=deadline_s, priority=priority))

    def _called(self, call: Any, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._threads is None:
            return call(*args, **kwargs)  # type: ignore[no-any-return]
        return self._threads.submit(lambda: call(*args, **kwargs).result())

    def _checked(self, request: InferRequest) -> list[Array]:
        """The arrays in the order in which the model takes them."""
        if self.state == "UNAVAILABLE" and self.reason == "unloaded":
            raise Unavailable(f"model {self.name!r} is unloaded")
        if not request.inputs:
            raise RequestError("the request has no inputs")
        if request.outputs is not None and self.outputs:
            _check_known("output", request.outputs, {spec.name for spec in self.outputs}, self.name)
        if not self.inputs:
            return [array for _, array in request.inputs.values()]
        _check_known("input", request.inputs, {spec.name for spec in self.inputs}, self.name)
        return [_checked_input(spec, request.inputs, self.name) for spec in self.inputs]

    def _named(self, result: Any) -> list[tuple[str, str, Array]]:
        """What the model gave, by the names of its outputs."""
        found = _as_outputs(result)
        if self.outputs:
            if isinstance(result, Mapping) and {name for name, _ in found} >= {spec.name for spec in self.outputs}:
                by_name = dict(found)
                found = [(spec.name, by_name[spec.name]) for spec in self.outputs]
            if len(found) != len(self.outputs):
                raise ModelFailed(f"model {self.name!r} gave {len(found)} outputs, but {len(self.outputs)} are declared")
            return [(spec.name, spec.datatype, _checked_output(spec, array)) for spec, (_, array) in zip(self.outputs, found)]
        named = [(name, datatype_of(array), array) for name, array in found]
        for name, datatype, array in named:
            if not datatype:
                raise ModelFailed(f"output {name!r} of model {self.name!r} is of type {array.dtype}, which the protocol does not know")
        return named


def _check_known(what: str, names: Any, known: set[str], model: str) -> None:
    for name in names:
        if name not in known:
            raise RequestError(f"model {model!r} has no {what} {name!r}; it has {', '.join(sorted(known))}")


def _checked_input(spec: TensorSpec, inputs: Mapping[str, tuple[str, Array]], model: str) -> Array:
    if spec.name not in inputs:
        raise RequestError(f"model {model!r} needs the input {spec.name!r}, which is missing")
    datatype, array = inputs[spec.name]
    if datatype != spec.datatype:
        raise RequestError(f"input {spec.name!r} of model {model!r} is {spec.datatype}, not {datatype}")
    if not _fits(spec.shape, array.shape):
        raise RequestError(f"input {spec.name!r} of model {model!r} has the shape {list(spec.shape)}, not {list(array.shape)}")
    return array


def _checked_output(spec: TensorSpec, array: Array) -> Array:
    datatype = datatype_of(array)
    if spec.datatype == "BF16" and datatype == "FP32":  # the pool widens it, which loses nothing
        array = array.astype(dtype_of("BF16"))
    elif datatype != spec.datatype:
        raise ModelFailed(f"output {spec.name!r} is {datatype or array.dtype}, but {spec.datatype} is declared")
    if not _fits(spec.shape, array.shape):
        raise ModelFailed(f"output {spec.name!r} has the shape {list(array.shape)}, but {list(spec.shape)} is declared")
    return array


def _fits(declared: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(declared) == len(shape) and all(size in (-1, given) for size, given in zip(declared, shape))


def _as_outputs(result: Any) -> list[tuple[str, Array]]:
    if isinstance(result, Mapping):
        return [(str(name), _as_array(value)) for name, value in result.items()]
    if isinstance(result, (tuple, list)) and not all(isinstance(item, (str, bytes)) for item in result):
        return [(f"output_{i}", _as_array(value)) for i, value in enumerate(result)]
    return [("output_0", _as_array(result))]


def _as_array(value: Any) -> Array:
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, (str, bytes)):
        return np.array(value, object)
    if isinstance(value, (bool, int, float, np.generic)):
        return np.asarray(value)
    if isinstance(value, (list, tuple)) and all(isinstance(item, (str, bytes)) for item in value):
        array: Array = np.empty(len(value), object)
        array[:] = value
        return array
    raise ModelFailed(f"the model gave a {type(value).__name__}, which is no tensor")


def _chosen(outputs: list[tuple[str, str, Array]], names: list[str]) -> list[tuple[str, str, Array]]:
    by_name = {output[0]: output for output in outputs}
    _check_known("output", names, set(by_name), "")
    return [by_name[name] for name in names]
