"""Many requests one after the other, results in the same order: quick ones travel together from the start.

A future for each of them would cost more than a small model does. So they are put together here, before they are tasks: rows that may
share a batch to a bunch, which is one request, whose result is cut up again; others to a chunk, whose requests run one by one.
Where a bunch fails, each of its requests runs by itself; a chunk looks after its own.

Whatever goes wrong on the way in has its place among the results: those before it come first.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from rankwise.pool.chunks import Chunk
from rankwise.pool.inlet import cut_value, is_one_array
from rankwise.pool.nested import has_rows
from rankwise.pool.schedule import ModelState
from rankwise.pool.seeds import seed_of
from rankwise.pool.tasks import Parcel
from rankwise.pool.verdicts import PoolClosed, PoolFull
from rankwise.pool.wire import INLINE_BYTES

_MOST, _MOST_FUTURES = 8192, 512  # requests under way, and futures for them, where nobody said
_FIRST, _LARGEST = 8, 256  # requests of a bunch: few at first, so that the workers have something to do soon
_CHUNK_S, _CHUNK_BYTES = 0.01, 40_000  # that the requests of a chunk take at most, or their results, as far as is known
_LOOK = 16  # requests of a quick source between two looks whether a result is there
WINDOW = 64  # requests under way where each has a future of its own, and nobody said
PATIENCE_S = 0.005  # between two looks whether others have made room
_SLOW_S = 0.0005  # a source that takes this long for one request is not bunched: what it gave would only wait for more


class Bunch:
    """Requests of one model that are sent as one."""

    def __init__(self, model: ModelState, kind: tuple[Any, ...]) -> None:
        self.model, self.kind = model, kind  # what they have in common: model, tag, dtype, shape of a row, whether tensors come back
        self.data: list[bytes] = []
        self.edges = [0]  # rows before each request, and after the last
        self.rows = self.size = 0
        self.future: Future[Any] | None = None
        self.is_here = False
        self._value: Any = None
        self._is_array = self._has_failed = False

    def parcel(self, start: int = 0, stop: int | None = None) -> Parcel:
        """All of it, or some of its requests, as one."""
        _, tag, dtype, row, to_tensor = self.kind
        rows = self.edges[len(self.data) if stop is None else stop] - self.edges[start]
        data = b"".join(self.data[start:stop])
        return ("(", ((tag, dtype, (rows, *row), data),)), len(data), (), to_tensor

    def wait(self) -> None:
        assert self.future is not None
        try:
            self._value = self.future.result()
            self._is_array = hasattr(self._value, "shape")
            self._has_failed = not has_rows(self._value, self.rows)
        except PoolClosed:
            raise
        except Exception:  # of one of them, perhaps
            self._has_failed = True
        self.is_here = True

    @property
    def is_spoilt(self) -> bool:
        """Each of its requests has to run by itself; also where its model has turned out to know no rows since."""
        return self._has_failed or self.model.unbatched is not None

    def is_last(self, place: int) -> bool:
        return place == len(self.data) - 1

    def value(self, i: int) -> Any:
        """Of its i-th request."""
        start, stop = self.edges[i], self.edges[i + 1]
        return self._value[start:stop] if self._is_array else cut_value(self._value, start, stop)


class Later:
    """A request that found no room beside the results that were here and not fetched yet: it is sent when these have been."""

    def __init__(self, act: Callable[[], Future[Any]]) -> None:
        self.act = act


class Run:
    """Results that are to be fetched one after the other, from a bunch or a chunk: those from `place` to `stop`."""

    __slots__ = ("group", "place", "stop")

    def __init__(self, group: Bunch | Chunk, place: int) -> None:
        self.group, self.place, self.stop = group, place, place + 1


@dataclass(frozen=True)
class Ways:
    """What a stream needs of the pool."""

    parcel: Callable[[ModelState, Sequence[Any]], Parcel]
    submit: Callable[..., Future[Any]]
    new_chunk: Callable[[ModelState, tuple[Any, ...]], Chunk]
    submit_chunk: Callable[[Chunk], Future[Any]]
    abandon: Callable[[Chunk], Any]
    has_open_tasks: Callable[[], bool]
    workers: int


class Stream:
    """One pass over a source of requests; at most `window` of them are under way, or as many groups where nobody said."""

    def __init__(self, ways: Ways, window: int | None, seed: int | None, length: int) -> None:
        self._ways = ways
        self._most, self._most_futures = window or _MOST, window or _MOST_FUTURES
        self._waiting: deque[Run | Future[Any] | Later] = deque()
        self._requests = 0  # that wait
        self._is_short = False  # of room, until a result has been fetched
        self._num_futures = 0  # of those that wait
        self._bunches: dict[Any, Bunch] = {}  # that are not sent yet
        self._chunks: dict[Any, Chunk] = {}  # the same
        self._chunk_sizes: dict[int, int] = {}  # of the model's chunks, until the next is sent
        self._tried: set[int] = set()  # models that a chunk was sent of: no more before it is known how large results are
        self._limit = _FIRST
        self._seed, self._taken, self._length = seed, 0, length  # as far as the source knows; 0: it does not

    def results(self, requests: Iterable[tuple[ModelState, Sequence[Any]]], deadline_s: float | None) -> Iterator[Any]:
        source, waiting, monotonic = iter(requests), self._waiting, time.monotonic
        last = monotonic()
        try:
            while True:
                try:
                    for model, inputs in source:
                        now = monotonic()
                        is_slow, last = now - last > _SLOW_S, now
                        if is_slow:
                            self._limit = 1
                            self._send_all()
                        elif self._limit == 1:
                            self._limit = _FIRST
                        self._take(model, inputs, deadline_s, is_slow)
                        self._requests += 1
                        if self._requests >= self._most or self._num_futures >= self._most_futures or self._is_short:
                            break
                        if (is_slow or not self._requests % _LOOK) and self._is_first_done():
                            break
                    else:
                        self._send_all()
                except Exception as error:  # of the source: the end of it
                    source = iter(())
                    self._add(failed(error))
                    self._requests += 1
                if not waiting:
                    return
                yield from self._next()
                while waiting and self._is_first_done():  # what is here already, before the source is asked for more
                    yield from self._next()
                last = monotonic()
        finally:
            for future in self._futures():
                if type(future) is Chunk:
                    self._ways.abandon(future)
                else:
                    future.cancel()
            for chunk in self._chunks.values():
                self._ways.abandon(chunk)

    def _take(self, model: ModelState, inputs: Sequence[Any], deadline_s: float | None, is_slow: bool) -> None:
        seed = None if self._seed is None else seed_of(self._seed, self._taken)
        self._taken += 1
        try:
            parcel = self._ways.parcel(model, inputs)
            is_grouped = self._is_chunked if model.max_batch == 1 else self._is_bunched
            if self._limit > 1 and deadline_s is None and seed is None and is_grouped(model, parcel):
                return
            self._add(self._ways.submit(model, parcel, deadline_s, is_lazy=not is_slow, seed=seed))
        except PoolFull:  # the inputs are read again: a task that was refused has let go of its place on the lane
            self._add(
                self._when_there_is_room(
                    lambda: self._ways.submit(model, self._ways.parcel(model, inputs), deadline_s, is_lazy=True, seed=seed)
                )
            )
        except Exception as error:  # it cannot be sent
            self._add(failed(error))

    def _add(self, future: Future[Any] | Later) -> None:
        self._num_futures += 1
        self._waiting.append(future)

    def _is_bunched(self, model: ModelState, parcel: Parcel) -> bool:
        node, _, slots, to_tensor = parcel
        if slots or not is_one_array(node):
            return False
        tag, dtype, shape, data = node[1][0]
        if not shape or not 0 < shape[0] < model.max_batch:
            return False
        self._bunch(model, (model.number, tag, dtype, shape[1:], to_tensor), shape[0], data)
        return True

    def _when_there_is_room(self, act: Callable[[], Future[Any]]) -> Future[Any] | Later:
        self._send_all()  # what is not even sent makes no room
        future = self._patiently(act, was_refused=True)
        if not self._waiting or not future.done() or not isinstance(future.exception(), PoolFull):
            return future
        self._is_short = True
        return Later(act)

    def _follow(self, group: Bunch | Chunk, place: int) -> None:
        """The next result is this one's."""
        last = self._waiting[-1] if self._waiting else None
        if type(last) is Run and last.group is group and last.stop == place:
            last.stop += 1
        else:
            self._waiting.append(Run(group, place))

    def _chunk_size(self, model: ModelState) -> int:
        """As many as are done in a moment, but not so many that near the end one worker has all that is left."""
        if model.order_s is None or (model.result_bytes is None and model.number in self._tried):
            return 1
        most = min(self._limit, int(_CHUNK_S / max(model.order_s, 1e-6)), int(_CHUNK_BYTES / max(model.result_bytes or 0.0, 1.0)))
        left = min(self._most, self._length - self._taken if self._length else self._most)
        most = min(most, left // (2 * self._ways.workers))
        if most > 1:
            self._chunk_sizes[model.number] = most
        return most

    def _is_chunked(self, model: ModelState, parcel: Parcel) -> bool:
        most = self._chunk_sizes.get(model.number) or self._chunk_size(model)
        if most < 2:
            return False
        data, size, slots, to_tensor = parcel
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
            chunk = self._chunks[kind] = self._ways.new_chunk(model, kind)
            self._num_futures += 1
        self._follow(chunk, chunk.count)
        chunk.add(data, size, slots)
        if chunk.count >= most:
            self._send_chunk(chunk)
            self._limit = min(_LARGEST, 2 * self._limit)
        return True

    def _bunch(self, model: ModelState, kind: tuple[Any, ...], rows: int, data: bytes) -> None:
        bunch = self._bunches.get(kind)
        if bunch is not None and (bunch.rows + rows > model.max_batch or bunch.size + len(data) > 4 * INLINE_BYTES):
            self._send_bunch(bunch)
            bunch = None
        if bunch is None:
            bunch = self._bunches[kind] = Bunch(model, kind)
            self._num_futures += 1
        self._follow(bunch, len(bunch.data))
        bunch.data.append(data)
        bunch.rows += rows
        bunch.edges.append(bunch.rows)
        bunch.size += len(data)
        if len(bunch.data) >= self._limit:
            self._send_bunch(bunch)
            self._limit = min(_LARGEST, 2 * self._limit)

    def _send_all(self) -> None:
        for bunch in list(self._bunches.values()):
            self._send_bunch(bunch)
        for chunk in list(self._chunks.values()):
            self._send_chunk(chunk)

    def _send_bunch(self, bunch: Bunch) -> None:
        del self._bunches[bunch.kind]
        bunch.future = self._patiently(lambda: self._ways.submit(bunch.model, bunch.parcel(), is_lazy=True))

    def _send_chunk(self, chunk: Chunk) -> None:
        self._chunk_sizes.clear()
        self._tried.add(chunk.model.number)
        sent = self._patiently(lambda: self._ways.submit_chunk(chunk))
        del self._chunks[chunk.kind]  # not before: nobody may wait for one that is not sent
        if sent is not chunk:  # the pool is closed, say: that is what became of each request
            self._ways.abandon(chunk)
            chunk.fail_all(sent.exception())

    def _next(self) -> Iterator[Any]:
        """What the first of those that wait gave: one result, or those of a group that are here."""
        head = self._waiting[0]
        if type(head) is Run:
            yield from self._of_run(head)
            return
        self._waiting.popleft()
        self._num_futures -= 1
        self._requests -= 1
        if type(head) is Later:
            self._is_short = False
            head = self._patiently(head.act)
        yield head.result()  # type: ignore[union-attr]

    def _of_run(self, run: Run) -> Iterator[Any]:
        group = run.group
        self._wait_for(group)
        value = group.value
        while run.place < run.stop:
            place = run.place
            run.place = place + 1
            self._requests -= 1
            if run.place == run.stop:
                self._waiting.popleft()
                self._num_futures -= group.is_last(place)
            if group.is_spoilt:
                assert type(group) is Bunch
                parcel = group.parcel(place, place + 1)
                yield self._patiently(lambda: self._ways.submit(group.model, parcel)).result()  # noqa: B023  (used at once)
            else:
                yield value(place)

    def _wait_for(self, group: Bunch | Chunk) -> None:
        if group.is_here:
            return
        if not self._is_group_done(group):
            self._send_all()  # while we wait, the workers have all there is
        group.wait()

    def _is_group_done(self, group: Bunch | Chunk) -> bool:
        future = group if type(group) is Chunk else group.future  # type: ignore[union-attr]
        return future is not None and future.done()

    def _is_first_done(self) -> bool:
        head = self._waiting[0]
        if type(head) is Run:
            return self._is_group_done(head.group)
        return type(head) is Later or head.done()  # type: ignore[union-attr]

    def _futures(self) -> list[Future[Any]]:
        heads = [head for head in self._waiting if type(head) is not Later]
        futures = [(h.group if type(h.group) is Chunk else h.group.future) if type(h) is Run else h for h in heads]  # type: ignore[union-attr]
        return [future for future in futures if future is not None and not self._is_unsent(future)]  # type: ignore[misc,arg-type]

    def _is_unsent(self, future: Future[Any]) -> bool:
        return type(future) is Chunk and self._chunks.get(future.kind) is future

    def _patiently(self, act: Callable[[], Future[Any]], was_refused: bool = False) -> Future[Any]:
        """Where the queue or the lane is full, wait; where nobody is left who could make room, and where it cannot be done at all, that is
        what becomes of the request."""
        is_hopeless = was_refused and not self._has_waited()
        while True:
            try:
                return act()
            except PoolFull as error:
                if is_hopeless and not self._ways.has_open_tasks():
                    return failed(error)
            except Exception as error:
                return failed(error)
            is_hopeless = not self._has_waited()

    def _has_waited(self) -> bool:
        """For one of our own, or for others; False where nothing is under way, though what was a moment ago may just have made room."""
        unfinished = next((future for future in self._futures() if not future.done()), None)
        if unfinished is not None:
            unfinished.exception()
        elif self._ways.has_open_tasks():
            time.sleep(PATIENCE_S)
        else:
            return False
        return True


def failed(error: Exception) -> Future[Any]:
    """What becomes of a request that never was one."""
    future: Future[Any] = Future()
    future.set_exception(error)
    return future
