"""Quick requests of a stream travel together from the start.

A future for each of them would cost more than a small model does. So requests are grouped here, before they are tasks. Rows that may
share a batch become a bunch: one request, whose result is cut up again. Other requests become a chunk, whose requests run one by one.
Where a bunch fails, each of its requests runs by itself; a chunk looks after its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

import numpy as np

from rankwise.pool.api.streams import Postponed, Stream
from rankwise.pool.errors import PoolClosed
from rankwise.pool.memory.encoding import INLINE_BYTES, NUMPY, EncodedInputs, has_rows
from rankwise.pool.memory.requests import GatheredRows, InputEncoder, cut_value, is_one_array, plain_array, split
from rankwise.pool.schedule.pool_state import PoolState
from rankwise.pool.schedule.state import ModelState, Plan, seed_of
from rankwise.pool.schedule.tasks import Chunk, TaskOwner

_MOST, _MOST_FUTURES = 8192, 512  # requests under way, and futures for them, where the caller did not say
_FIRST, _LARGEST = 8, 256  # requests of a bunch or chunk: few at first, so that the workers have something to do soon
_UNSENT = 1024  # requests of all chunks that are being filled: where many models take turns, no worker waits for them all
_GATHERED_FROM, _GATHERED_BYTES = 512, 8 << 20  # bytes of a request, and of a bunch, that is put together on the lane
# The seconds that the requests of a chunk take at most, and the bytes of their results, as far as is known. On a busy machine it takes some
# hundredths of a second until this process gets a core again: until then the workers have enough.
_CHUNK_S, _CHUNK_BYTES = 0.05, 40_000


class Bunch:
    """Requests of one model that are sent as one."""

    def __init__(self, model: ModelState, kind: tuple[Any, ...], gathered: GatheredRows | None = None) -> None:
        self.model, self.kind = model, kind  # what they have in common: model, tag, dtype, shape of a row, whether tensors come back
        self.data: list[bytes] = []  # of small rows, which travel in the message
        self.gathered = gathered  # where the others are
        self.edges = [0]  # rows before each request, and after the last
        self.size = 0
        self.future: Future[Any] | None = None
        self.fetched = 0  # requests whose results the caller has
        self.is_here = False
        self._value: Any = None
        self._arrays: Sequence[Any] | None = None  # of each request, where the result is one tensor or array
        self._has_failed = False

    def encoded(self, start: int = 0, stop: int | None = None) -> EncodedInputs:
        """All of it, or some of its requests, as one."""
        _, tag, dtype, row, to_tensor = self.kind
        first, last = self.edges[start], self.edges[self.count if stop is None else stop]
        shape = (last - first, *row)
        if self.gathered is None:
            data = b"".join(self.data[start:stop])
            return ("(", ((tag, dtype, shape, data),)), len(data), (), to_tensor
        place, slot = self.gathered.lent(first, last)
        return ("(", ((tag, dtype, shape, place),)), 100, (slot,), to_tensor

    @property
    def count(self) -> int:
        return len(self.edges) - 1

    @property
    def rows(self) -> int:
        return self.edges[-1]

    def add(self, rows: int, data: bytes) -> None:
        self.data.append(data)
        self.edges.append(self.edges[-1] + rows)
        self.size += len(data)

    def wait(self) -> None:
        assert self.future is not None
        try:
            self._value = self.future.result()
            self._has_failed = not has_rows(self._value, self.rows)
            if not self._has_failed and hasattr(self._value, "shape"):
                self._arrays = split(self._value, self.edges)
        except PoolClosed:
            raise
        except Exception:  # of one of them, perhaps
            self._has_failed = True
        self.is_here = True

    @property
    def is_spoilt(self) -> bool:
        """Each of its requests has to run by itself; also where its model has turned out to know no rows since."""
        return self._has_failed or self.model.unbatched is not None

    def value(self, i: int) -> Any:
        return self._arrays[i] if self._arrays is not None else cut_value(self._value, self.edges[i], self.edges[i + 1])


_GROUPS = (Bunch, Chunk)
Filling = tuple[Chunk, np.dtype[Any], tuple[int, ...], int, int]  # type and shape of its arrays, the bytes of each, and how many it takes


class StreamPool(TaskOwner, Protocol):
    """What a stream needs of the pool."""

    encoder: InputEncoder
    state: PoolState
    plan: Plan

    def submit_encoded(self, model: ModelState, encoded: EncodedInputs, *options: Any, **named: Any) -> Future[Any]: ...
    def submit_chunk(self, chunk: Chunk) -> Future[Any]: ...


class GroupedStream(Stream):
    """A stream of models and their inputs; without a window of the caller's, as many groups are under way as keep the workers busy."""

    def __init__(
        self, pool: StreamPool, window: int | None, deadline_s: float | None, priority: int, seed: int | None, length: int
    ) -> None:
        submit = partial(pool.submit_encoded, priority=priority) if priority else pool.submit_encoded
        super().__init__(submit, pool.state.has_open_tasks, window or _MOST)
        self._pool, self._encode, self._workers = pool, pool.encoder.encode, len(pool.plan.seats)
        self._deadline_s, self._priority, self._most_futures = deadline_s, priority, window or _MOST_FUTURES
        self._num_futures = 0  # of the entries that wait
        self._bunches: dict[Any, Bunch] = {}  # that are not sent yet
        self._chunks: dict[Any, Chunk] = {}  # the same
        self._chunk_sizes: dict[int, int] = {}  # of the model's chunks, until the next is sent
        self._filling: dict[int, Filling] = {}  # by the model: the chunk its last request went into, while it takes more
        self._tried: set[int] = set()  # models that a chunk was sent of: no more before it is known how large results are
        self._limit = _FIRST
        self._seed, self._taken, self._length = seed, 0, length  # as far as the source knows; 0: it does not

    def _take(self, request: tuple[ModelState, Sequence[Any]], is_slow: bool) -> None:
        model, inputs = request
        if not is_slow and (filling := self._filling.get(model.number)) is not None and self._is_like(filling, inputs):
            return
        if is_slow:  # requests of a slow source would only wait for more
            self._limit = 1
            self._send_all()
        elif self._limit == 1:
            self._limit = _FIRST
        seed = None if self._seed is None else seed_of(self._seed, self._taken)
        self._taken += 1
        encoded: EncodedInputs | None = None
        if self._limit > 1 and self._deadline_s is None and seed is None:
            try:
                if model.max_batch > 1 and len(inputs) == 1 and self._is_gathered(model, inputs[0]):
                    return
                encoded = self._encode(model.name, inputs)
                if (self._is_chunked if model.max_batch == 1 else self._is_bunched)(model, encoded):
                    return
            except Exception:  # it is met again when the request is sent by itself, and becomes its result
                encoded = None
        self._add(self._sent(self._sender(model, inputs, encoded, seed, not is_slow)))

    def _is_like(self, filling: Filling, inputs: Sequence[Any]) -> bool:
        """The usual case of a stream by the shortest way: one more array of the same kind, into the same chunk."""
        chunk, dtype, shape, size, most = filling
        array = inputs[0]
        if len(inputs) != 1 or type(array) is not np.ndarray or array.dtype is not dtype or array.shape != shape:
            return False
        self._taken += 1
        self._waiting.append(chunk)
        chunk.add(array.tobytes(), size)
        if chunk.count >= most:
            self._send_full(chunk)
        return True

    def _sender(
        self, model: ModelState, inputs: Sequence[Any], encoded: EncodedInputs | None, seed: int | None, is_lazy: bool
    ) -> Callable[[], Future[Any]]:
        """Encodes the inputs again after a refusal, because a task that was refused has let go of its memory."""
        left = [encoded] if encoded is not None else []

        def send() -> Future[Any]:
            own = left.pop() if left else self._encode(model.name, inputs)
            return self._submit(model, own, self._deadline_s, is_lazy=is_lazy, seed=seed)

        return send

    def _add(self, entry: Future[Any] | Postponed) -> None:
        self._num_futures += 1
        self._waiting.append(entry)

    def _is_full(self) -> bool:
        return self._requests >= self._most or self._num_futures >= self._most_futures or self._is_short

    def _is_bunched(self, model: ModelState, encoded: EncodedInputs) -> bool:
        node, _, slots, to_tensor = encoded
        if slots or not is_one_array(node):
            return False
        tag, dtype, shape, data = node[1][0]
        if not shape or not 0 < shape[0] < model.max_batch:
            return False
        kind, rows = (model.number, tag, dtype, shape[1:], to_tensor), shape[0]
        bunch = self._bunches.get(kind)
        if bunch is not None and (
            bunch.gathered is not None or bunch.rows + rows > model.max_batch or bunch.size + len(data) > 4 * INLINE_BYTES
        ):
            self._send_bunch(bunch)
            bunch = None
        if bunch is None:
            bunch = self._bunches[kind] = Bunch(model, kind)
            self._num_futures += 1
        self._waiting.append(bunch)
        bunch.add(rows, data)
        if bunch.count >= self._limit:
            self._send_full(bunch)
        return True

    def _is_gathered(self, model: ModelState, value: Any) -> bool:
        """Rows that are not tiny are copied to where their batch will be, each to its place."""
        if getattr(value, "nbytes", 0) < _GATHERED_FROM or (plain := plain_array(value)) is None:
            return False
        array, tag, dtype = plain
        shape = array.shape
        if not shape or not 0 < shape[0] < model.max_batch:
            return False
        kind = (model.number, tag, dtype, shape[1:], tag == "T")
        bunch = self._bunches.get(kind)
        gathered = None if bunch is None else bunch.gathered
        if bunch is None or gathered is None or gathered.count + shape[0] > gathered.most:
            if bunch is not None:
                self._send_bunch(bunch)
            most = min(model.max_batch, self._limit * shape[0], _GATHERED_BYTES * shape[0] // array.nbytes)
            gathered = self._pool.encoder.gather(array, most) if most >= 2 * shape[0] else None
            if gathered is None:
                return False
            bunch = self._bunches[kind] = Bunch(model, kind, gathered)
            self._num_futures += 1
        edges, end = bunch.edges, gathered.count + shape[0]
        self._waiting.append(bunch)
        gathered.add(array, end)
        edges.append(end)
        if len(edges) > self._limit:
            self._send_full(bunch)
        return True

    def _chunk_size(self, model: ModelState) -> int:
        """As many as are done in a moment, but not so many that near the end one worker has all that is left."""
        if model.order_s is None or (model.result_bytes is None and model.number in self._tried):
            return 1
        most = min(self._limit, int(_CHUNK_S / max(model.order_s, 1e-6)), int(_CHUNK_BYTES / max(model.result_bytes or 0.0, 1.0)))
        left = min(self._most, self._length - self._taken if self._length else self._most)
        most = min(most, left // (2 * self._workers), _UNSENT // max(len(self._chunks), 1))
        if most > 1:
            self._chunk_sizes[model.number] = most
        return most

    def _is_chunked(self, model: ModelState, encoded: EncodedInputs) -> bool:
        most = self._chunk_sizes.get(model.number) or self._chunk_size(model)
        if most < 2:
            return False
        data, size, slots, to_tensor = encoded
        if not slots and is_one_array(data):
            tag, dtype, shape, data = data[1][0]
            kind = (model.number, tag, dtype, shape, to_tensor)
        else:
            kind = (model.number, None, None, None, to_tensor)
        chunk = self._chunks.get(kind)
        if chunk is not None and chunk.size + size > _CHUNK_BYTES:
            self._send_chunk(chunk)
            chunk = None
        if chunk is None:
            chunk = self._chunks[kind] = Chunk(model, kind, self._pool)
            chunk.priority = self._priority
            self._num_futures += 1
        self._waiting.append(chunk)
        chunk.add(data, size, slots)
        if chunk.count >= most:
            self._send_full(chunk)
        elif kind[1] == "N":
            self._filling[model.number] = chunk, NUMPY[kind[2]], kind[3], size, min(most, _CHUNK_BYTES // max(size, 1))
        return True

    def _send_full(self, group: Bunch | Chunk) -> None:
        self._send_bunch(group) if type(group) is Bunch else self._send_chunk(group)  # type: ignore[arg-type]
        self._limit = min(_LARGEST, 2 * self._limit)

    def _send_all(self) -> None:
        for bunch in list(self._bunches.values()):
            self._send_bunch(bunch)
        for chunk in list(self._chunks.values()):
            self._send_chunk(chunk)

    def _send_bunch(self, bunch: Bunch) -> None:
        del self._bunches[bunch.kind]
        bunch.future = self._patiently(lambda: self._submit(bunch.model, bunch.encoded(), is_lazy=True))

    def _send_chunk(self, chunk: Chunk) -> None:
        self._chunk_sizes.clear()
        self._filling.clear()
        self._tried.add(chunk.model.number)
        sent = self._patiently(lambda: self._pool.submit_chunk(chunk))
        del self._chunks[chunk.kind]  # not before: no thread may wait for a chunk that is not sent
        if sent is not chunk:  # the pool is closed, say: that is what became of each request
            self._pool.state.abandon(chunk)
            chunk.fail_all(sent.exception())

    def _next(self) -> Iterator[Any]:
        if type(self._waiting[0]) in _GROUPS:
            return self._of_groups()
        self._num_futures -= 1
        return super()._next()

    def _of_groups(self) -> Iterator[Any]:
        """Results up to the first that is not here: each entry in line stands for the next result of its group."""
        waiting, group = self._waiting, self._waiting[0]
        if not group.is_here:
            if not self._is_group_done(group):
                self._send_all()  # while we wait, the workers have all there is
            group.wait()
        while True:
            waiting.popleft()
            place = group.fetched
            group.fetched = place + 1
            self._requests -= 1
            if group.fetched == group.count:
                self._num_futures -= 1
            if group.is_spoilt:
                yield self._patiently(partial(self._send_one, group, place)).result()
            else:
                yield group.value(place)
            if not waiting:
                return
            group = waiting[0]
            if type(group) not in _GROUPS or not group.is_here:
                return

    def _send_one(self, bunch: Bunch, place: int) -> Future[Any]:
        return self._submit(bunch.model, bunch.encoded(place, place + 1))

    def _is_group_done(self, group: Bunch | Chunk) -> bool:
        future = group if type(group) is Chunk else group.future  # type: ignore[union-attr]
        return future is not None and future.done()

    def _is_first_done(self) -> bool:
        head = self._waiting[0]
        return self._is_group_done(head) if type(head) in _GROUPS else super()._is_first_done()

    def _futures(self) -> list[Future[Any]]:
        heads = [head for head in dict.fromkeys(self._waiting) if type(head) is not Postponed]
        futures = [head.future if type(head) is Bunch else head for head in heads]
        unsent = set(self._chunks.values())
        return [future for future in futures if future is not None and future not in unsent]

    def _cancel(self) -> None:
        for future in [*self._futures(), *self._chunks.values()]:
            if type(future) is Chunk:
                self._pool.state.abandon(future)
            else:
                future.cancel()
