"""Quick requests of a stream travel together from the start.

A future for each of them would cost more than a small model does. So requests are grouped here, before they are tasks. Rows that may
share a batch become a bunch: one request, whose result is cut up again. Other requests become a chunk, whose requests run one by one.
If a bunch fails, each of its requests runs by itself; a chunk handles its own failures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from rankwise.errors import RankwiseError
from rankwise.pool.api.streams import Stream, StreamOptions, failed
from rankwise.pool.errors import PoolClosed
from rankwise.pool.memory.encoding import INLINE_BYTES, NUMPY, EncodedInputs, has_rows
from rankwise.pool.memory.requests import GatheredRows, InputEncoder, cut_value, is_one_array, plain_array, split, travels_side_by_side
from rankwise.pool.schedule.pool_state import PoolState
from rankwise.pool.schedule.state import ModelState, PoolPlan, seed_of
from rankwise.pool.schedule.tasks import Chunk, TaskOwner

_MOST, _MOST_FUTURES = 8192, 512  # requests under way, and futures for them, if the caller did not say
_FIRST, _LARGEST = 8, 256  # requests of a bunch or chunk: few at first, so that the workers have something to do soon
_UNSENT = 2560  # requests in all unsent chunks together: where many models take turns, no worker should wait for them
_BUNCH_BYTES = 8 << 20
# The most seconds of work in a chunk, and the most bytes of its results, as far as they are known. On a busy machine this process may wait
# some hundredths of a second for a core, and the workers need enough work until then.
_CHUNK_S, _CHUNK_BYTES = 0.05, 40_000
_CHUNK_LANE_BYTES = 1 << 20  # of larger arrays, which lie side by side on the lane


class Bunch:
    """Requests of one model that are sent as one."""

    def __init__(self, model: ModelState, kind: tuple[Any, ...], rows: GatheredRows) -> None:
        self.model, self.kind, self.rows = model, kind, rows  # what they have in common: model, tag, dtype, shape of a row
        self.edges = [0]  # rows before each request, and after the last
        self.count = 0  # requests in it
        self.future: Future[Any] | None = None  # None until it is sent
        self.fetched = 0  # requests whose results the caller has
        self.is_here = False
        self._value: Any = None
        self._arrays: Sequence[Any] | None = None  # one for each request, if the result is one tensor or array
        self._has_failed = False

    def encoded(self, start: int = 0, stop: int | None = None) -> EncodedInputs:
        """The whole bunch, or some of its requests, as one request."""
        _, tag, dtype, row = self.kind
        first, last = self.edges[start], self.edges[self.count if stop is None else stop]
        place, size, slots = self.rows.lent(first, last)
        return ("(", ((tag, dtype, (last - first, *row), place),)), size, slots, tag == "T"

    def add(self, array: np.ndarray[Any, Any], rows: int) -> None:
        self.edges.append(self.rows.add(array, rows))
        self.count += 1

    def wait(self) -> None:
        assert self.future is not None
        error = self.future.exception()  # returns the task's error; what it raises comes from a signal handler
        if isinstance(error, PoolClosed):
            raise error
        self._has_failed = error is not None  # perhaps because of one request only
        if error is None:
            self._cut(self.future.result())
        self.is_here = True

    def _cut(self, value: Any) -> None:
        self._value = value
        try:
            self._has_failed = not has_rows(value, self.rows.count)
            if not self._has_failed and hasattr(value, "shape"):
                self._arrays = split(value, self.edges)
        except Exception:  # the classes of its containers may raise anything
            self._has_failed = True

    @property
    def is_spoilt(self) -> bool:
        """Whether each of its requests has to run by itself: the bunch failed, or its model has stopped being batched since."""
        return self._has_failed or self.model.unbatched is not None

    def value(self, i: int) -> Any:
        return self._arrays[i] if self._arrays is not None else cut_value(self._value, self.edges[i], self.edges[i + 1])

    # ---- what a stream asks of each entry in its line, as of a future

    def done(self) -> bool:
        return self.future is not None and self.future.done()

    def exception(self) -> Any:
        assert self.future is not None
        return self.future.exception()

    def cancel(self) -> bool:
        return self.future is not None and self.future.cancel()


_GROUPS = (Bunch, Chunk)


class Filling(NamedTuple):
    """The unsent group that took a model's latest request, and what the next request has to be like to join it the quick way."""

    group: Bunch | Chunk
    dtype: np.dtype[Any] | None  # of its arrays, if they are numpy's
    shape: tuple[int, ...]  # of each array
    size: int  # of each: rows in a bunch, bytes in a chunk
    most: int  # requests that the group may have


class StreamPool(TaskOwner, Protocol):
    """What a stream needs of the pool."""

    encoder: InputEncoder
    state: PoolState
    plan: PoolPlan

    def submit_encoded(self, model: ModelState, encoded: EncodedInputs, *options: Any, **named: Any) -> Future[Any]: ...
    def submit_chunk(self, chunk: Chunk) -> Future[Any]: ...


class GroupedStream(Stream):
    """A stream of models and their inputs. If the caller gives no window, as many groups are under way as keep the workers busy."""

    def __init__(self, pool: StreamPool, options: StreamOptions) -> None:
        submit = partial(pool.submit_encoded, priority=options.priority) if options.priority else pool.submit_encoded
        super().__init__(submit, pool.state.has_open_tasks, options.window or _MOST)
        self._pool, self._encode, self._workers = pool, pool.encoder.encode, len(pool.plan.seats)
        self._deadline_s, self._priority = options.deadline_s, options.priority
        self._most_futures = options.window or _MOST_FUTURES
        self._groups: dict[Any, Any] = {}  # bunches and chunks that are not sent yet, by what their requests have in common
        self._filling: dict[int, Filling] = {}  # by model; forgotten when the group, or any chunk, is sent
        self._tried: set[int] = set()  # models of which a chunk was sent: the next one waits until the size of results is known
        self._limit = _FIRST
        self._seed, self._taken, self._length = options.seed, 0, options.length

    def _take(self, request: tuple[ModelState, Sequence[Any]], is_slow: bool) -> None:
        model, inputs = request
        if not is_slow and len(inputs) == 1 and (filling := self._filling.get(model.number)) is not None:
            array = inputs[0]
            group, dtype, shape, size, most = filling
            if type(array) is np.ndarray and array.dtype is dtype and array.shape == shape:
                self._add_alike(group, array, size, most)  # a shortcut for the usual case of a stream
                return
        if is_slow:  # requests of a slow source would only wait for more
            self._limit = 1
            self._send_all()
        elif self._limit == 1:
            self._limit = _FIRST
        seed = seed_of(self._seed, self._taken)
        self._taken += 1
        if self._limit > 1 and self._deadline_s is None and seed is None:
            known = len(self._waiting)
            try:
                if self._is_bunched(model, inputs) if model.max_batch > 1 else self._is_chunked(model, inputs):
                    return
            except RankwiseError:  # raised again when the request is sent by itself, and then it is the request's result
                pass
            except Exception as error:  # the request raised it; or a signal handler did, if the request is in line already
                if len(self._waiting) > known:
                    raise
                self._num_futures += 1
                self._waiting.append(failed(error))
                return
        self._num_futures += 1
        self._waiting.append(self._sent(lambda: self._send_alone(model, inputs, not is_slow, seed)))

    def _add_alike(self, group: Bunch | Chunk, array: np.ndarray[Any, Any], size: int, most: int) -> None:
        """One more array of the same kind, into the same group."""
        self._taken += 1
        if isinstance(group, Bunch):
            group.add(array, size)
        elif size <= INLINE_BYTES:
            group.add(array.tobytes(), size)
        else:
            group.add_row(array)
        self._waiting.append(group)
        if group.count >= most:
            self._send_full(group)

    def _send_alone(self, model: ModelState, inputs: Sequence[Any], is_lazy: bool, seed: int | None) -> Future[Any]:
        return self._submit(model, self._encode(model.name, inputs), self._deadline_s, is_lazy=is_lazy, seed=seed)

    def _is_bunched(self, model: ModelState, inputs: Sequence[Any]) -> bool:
        """Add the request to a bunch: its rows are copied to their place in the batch. False if it cannot join one."""
        if len(inputs) != 1 or (plain := plain_array(inputs[0])) is None:
            return False
        array, tag, dtype = plain
        shape = array.shape
        if not shape or not 0 < shape[0] < model.max_batch:
            return False
        kind = (model.number, tag, dtype, shape[1:])
        bunch = self._groups.get(kind)
        if bunch is not None and bunch.rows.count + shape[0] > bunch.rows.most:
            self._send_bunch(bunch)
            bunch = None
        if bunch is None:
            most = min(model.max_batch, self._limit * shape[0], _BUNCH_BYTES * shape[0] // max(array.nbytes, 1))
            rows = self._pool.encoder.gather(array, shape[1:], most) if most >= 2 * shape[0] else None
            if rows is None:
                return False
            bunch = self._groups[kind] = Bunch(model, kind, rows)
            self._num_futures += 1
        bunch.add(array, shape[0])
        self._waiting.append(bunch)
        most = bunch.count + (bunch.rows.most - bunch.rows.count) // shape[0]
        self._filling[model.number] = Filling(bunch, array.dtype if tag == "N" else None, shape, shape[0], most)
        if bunch.count >= most:
            self._send_full(bunch)
        return True

    def _chunk_size(self, model: ModelState) -> int:
        """How many tasks make a chunk: as many as are done in a moment, but near the end not all of what is left."""
        if model.order_s is None or (model.result_bytes is None and model.number in self._tried):
            return 1
        most = min(self._limit, int(_CHUNK_S / max(model.order_s, 1e-6)), int(_CHUNK_BYTES / max(model.result_bytes or 0.0, 1.0)))
        left = min(self._most, self._length - self._taken if self._length else self._most)
        return min(most, left // (2 * self._workers), _UNSENT // max(len(self._groups), 1))

    def _is_chunked(self, model: ModelState, inputs: Sequence[Any]) -> bool:
        filling = self._filling.get(model.number)
        most = self._chunk_size(model) if filling is None else filling.most
        if most < 2:
            return False
        plain = plain_array(inputs[0]) if len(inputs) == 1 else None
        if plain is not None and travels_side_by_side(plain[0]) and self._is_laid_side_by_side(model, *plain, most):
            return True
        data, size, slots, to_tensor = self._encode(model.name, inputs)
        tag, dtype, shape = None, "", ()
        if not slots and is_one_array(data):
            tag, dtype, shape, data = data[1][0]
        kind = (model.number, tag, dtype, shape, to_tensor)
        chunk = self._groups.get(kind)
        if chunk is not None and chunk.size + size > _CHUNK_BYTES:
            self._send_chunk(chunk)
            chunk = None
        if chunk is None:
            chunk = self._new_chunk(model, kind)
        chunk.add(data, size, slots)
        self._waiting.append(chunk)
        if filling is None or filling.group is not chunk:
            most = min(most, _CHUNK_BYTES // max(size, 1)) if tag == "N" else most  # above 1, because larger arrays are on the lane
            self._filling[model.number] = Filling(chunk, NUMPY[dtype] if tag == "N" else None, shape, size, most)
        if chunk.count >= most:
            self._send_full(chunk)
        return True

    def _is_laid_side_by_side(self, model: ModelState, array: np.ndarray[Any, Any], tag: str, dtype: str, most: int) -> bool:
        """Copy large arrays of a chunk side by side into shared memory; False if there is no room for them."""
        kind = (model.number, tag, dtype, array.shape, tag == "T")
        chunk = self._groups.get(kind)
        if chunk is None:
            rows = self._pool.encoder.gather(array, array.shape, max(2, min(most, _CHUNK_LANE_BYTES // array.nbytes)))
            if rows is None:
                return False
            chunk = self._new_chunk(model, kind, rows)
        chunk.add_row(array)
        self._waiting.append(chunk)
        most = min(most, chunk.most)
        self._filling[model.number] = Filling(chunk, array.dtype if tag == "N" else None, array.shape, array.nbytes, most)
        if chunk.count >= most:
            self._send_full(chunk)
        return True

    def _new_chunk(self, model: ModelState, kind: tuple[Any, ...], rows: GatheredRows | None = None) -> Chunk:
        chunk = self._groups[kind] = Chunk(model, kind, self._pool, rows)
        chunk.priority = self._priority
        self._num_futures += 1
        return chunk

    def _send_full(self, group: Bunch | Chunk) -> None:
        self._send(group)
        self._limit = min(_LARGEST, 2 * self._limit)

    def _send_all(self) -> None:
        for group in list(self._groups.values()):
            self._send(group)

    def _send(self, group: Bunch | Chunk) -> None:
        if isinstance(group, Chunk):
            self._send_chunk(group)
        else:
            self._send_bunch(group)

    def _send_bunch(self, bunch: Bunch) -> None:
        self._filling.pop(bunch.model.number, None)
        try:
            future = self._patiently(lambda: self._submit(bunch.model, bunch.encoded(), is_lazy=True))
        except (RankwiseError, MemoryError) as error:
            future = failed(error)
        del self._groups[bunch.kind]  # not before: `_unfinished` skips unsent groups, which no thread may wait for
        bunch.future = future

    def _send_chunk(self, chunk: Chunk) -> None:
        self._filling.clear()
        self._tried.add(chunk.model.number)
        try:
            self._patiently(lambda: self._pool.submit_chunk(chunk))
        except Exception as error:  # the pool is closed, say: this is the result of each request
            self._pool.withdraw(chunk)
            chunk.set_exception(error)
        del self._groups[chunk.kind]

    def _next(self) -> Iterator[Any]:
        if type(self._waiting[0]) in _GROUPS:
            return self._of_groups()
        self._num_futures -= 1
        return super()._next()

    def _of_groups(self) -> Iterator[Any]:
        """Results up to the first that has not arrived. Each entry in line stands for the next result of its group."""
        waiting, group = self._waiting, self._waiting[0]
        if not group.is_here:
            if not group.done():
                self._send_all()  # so that the workers have everything while this thread waits
            group.wait()
        while type(group) in _GROUPS and group.is_here:
            waiting.popleft()
            place = group.fetched
            group.fetched = fetched = place + 1
            if fetched == group.count:
                self._num_futures -= 1
            if group.is_spoilt:
                yield self._patiently(partial(self._send_one, group, place)).result()
            else:
                yield group.value(place)
            group = waiting[0] if waiting else None

    def _send_one(self, bunch: Bunch, place: int) -> Future[Any]:
        return self._submit(bunch.model, bunch.encoded(place, place + 1))

    def _unfinished(self) -> Any:
        unsent = set(self._groups.values())
        return next((entry for entry in dict.fromkeys(self._waiting) if not entry.done() and entry not in unsent), None)
