"""One version of one model of the pool: whether it is ready, how it is loaded, and how it answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np

from rankwise.pool import Pool
from rankwise.pool.api.streams import awaited
from rankwise.protocol import Array, TensorSpec, dtype_of
from rankwise.serve.answering import Answering, Batches, Note
from rankwise.serve.cache import Cache, key_of
from rankwise.serve.errors import Unavailable, as_request_error
from rankwise.serve.infer_request import InferRequest, InferResponse, Output
from rankwise.serve.input_checks import checked_inputs, chosen, named_outputs
from rankwise.serve.models_file import Entry

_SIZES = (2, 3)  # the sizes tried for dimensions of any size, when the model's outputs are found out


class Served(Answering):
    """A model of the pool. `threads` run it where the pool has no workers, so that the server goes on listening."""

    def __init__(self, entry: Entry, pool: Pool, threads: Executor | None, note: Note) -> None:
        super().__init__(entry.name, entry.version, note)
        self.key, self._pool, self._threads = entry.key, pool, threads
        self._loading = asyncio.Lock()
        self.cache: Cache | None = None
        self.trial_batches: Batches = {}  # the server's own, run to find out the outputs
        self._describe(entry)
        self.state, self.reason = ("LOADING", "") if entry.preload else ("READY", "loaded when it is first asked")

    def _describe(self, entry: Entry) -> None:
        self.entry, self.preload, self.max_batch = entry, entry.preload, entry.model.max_batch
        self.inputs, self.outputs = entry.inputs, entry.outputs
        self.platform = "pytorch_pt2" if entry.model.is_program else "pytorch_module"
        self.cache = Cache(entry.cache_bytes) if entry.cache_bytes else None

    # ---- loading

    async def load(self, said: Any = None) -> None:
        """Load the model. One that is loaded already is loaded again, and the old one answers until the new one can.

        `said` is its entry from now on. Raises Unavailable where the model cannot be loaded; an old one is kept then.
        """
        async with self._loading:
            is_there = self.state == "READY" and bool(self.numbers()["replicas"])
            entry = said or self.entry
            if not is_there:
                self.state, self.reason = "LOADING", ""
            try:
                if self._pool.can_change and (is_there or said is not None):
                    await self._done(self._pool.reload, self.key, entry.model)
                else:
                    if is_there:  # this pool cannot reload: requests wait until the model is loaded again
                        self._pool.unload(self.key)
                    await self._done(self._pool.load, self.key)
                await self._become(entry)
            except Exception as error:
                self.reason = str(as_request_error(error, self.name))
                if is_there:
                    self.reason = f"the new one cannot be had, so the old one goes on answering: {self.reason}"
                else:
                    self.state = "UNAVAILABLE"
                self._note(self.reason, self.name)
                raise Unavailable(self.reason) from error
            self.state, self.reason = "READY", ""

    async def _become(self, entry: Entry) -> None:
        if self.cache is not None:
            self.cache.clear()
        if entry is not self.entry or not self.outputs:
            self._describe(entry)
            await self._learn_outputs()

    def unload(self) -> None:
        self._pool.unload(self.key)
        self.state, self.reason = "UNAVAILABLE", "unloaded"

    def discard(self) -> None:
        """Take the model out of the pool, after it was removed from the catalogue."""
        self.state, self.reason = "UNAVAILABLE", "unloaded"
        if self._threads is None:
            self._pool.remove(self.key)
        else:
            self._threads.submit(self._pool.remove, self.key)  # after the requests that came before

    async def _learn_outputs(self) -> None:
        """Find out outputs that are not declared: run the model on zeros with two batch sizes; dimensions that differ are free."""
        if self.outputs or not self.inputs or any(spec.datatype == "BYTES" for spec in self.inputs):
            return
        before = self.batches(self.numbers())
        try:
            await self._ask_with_zeros()
        finally:
            self.trial_batches = subtracted(self.numbers()["batches"], before)

    def numbers(self) -> dict[str, Any]:
        """The pool's counters of this model, now."""
        return dict(self._pool.stats()["models"][self.key])

    def batches(self, numbers: Mapping[str, Any] | None) -> Batches:
        """The batches so far, without those that the server itself ran to find out the outputs."""
        return subtracted(numbers["batches"], self.trial_batches) if numbers is not None else {}

    async def _ask_with_zeros(self) -> None:
        try:
            seen = [self._named(await self.run(self._zeros(size), 60.0, 0)) for size in _SIZES]
        except Exception:  # the model does not take zeros; then its outputs are known with the first answer
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

    async def _answer(self, request: InferRequest) -> InferResponse:
        if self.state == "UNAVAILABLE" and self.reason == "unloaded":
            raise Unavailable(f"model {self.name!r} is unloaded")
        arrays = checked_inputs(request, self.name, self.inputs, self.outputs)
        deadline_s, priority = request.deadline_s(), request.priority()
        cache = self.cache
        if cache is None:
            outputs = self._named(await self.run(arrays, deadline_s, priority))
        else:
            outputs = await self._cached(cache, request, lambda: self.run(arrays, deadline_s, priority))
        return self.respond(request, chosen(outputs, request.outputs, self.name))

    async def _cached(self, cache: Cache, request: InferRequest, run: Callable[[], Awaitable[Any]]) -> list[Output]:
        started_ns, generation = time.monotonic_ns(), cache.generation
        key = key_of(request.inputs, [spec.name for spec in self.inputs] or list(request.inputs))
        found = cache.find(key)
        self.tally.add("cache_miss" if found is None else "cache_hit", started_ns)
        if found is None:
            found = self._named(await run())
            cache.keep(key, found, generation)
        return found

    def _named(self, result: Any) -> list[Output]:
        return named_outputs(result, self.name, self.outputs)

    async def run(self, arrays: list[Array], deadline_s: float | None, priority: int) -> Any:
        return await self._done(self._pool.submit, self.key, *arrays, deadline_s=deadline_s, priority=priority)

    async def _done(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        return await awaited(self._called(call, *args, **kwargs))

    def _called(self, call: Any, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._threads is None:
            return call(*args, **kwargs)  # type: ignore[no-any-return]
        return self._threads.submit(lambda: call(*args, **kwargs).result())


def subtracted(batches: Mapping[int, tuple[int, int]], others: Mapping[int, tuple[int, int]]) -> Batches:
    left = {rows: (count - others.get(rows, (0, 0))[0], ns - others.get(rows, (0, 0))[1]) for rows, (count, ns) in batches.items()}
    return {rows: numbers for rows, numbers in left.items() if numbers[0] > 0}
