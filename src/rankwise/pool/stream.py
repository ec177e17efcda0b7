"""Many requests one after the other, results in the same order: small ones that may share a batch travel together from the start.

A future for each of them would cost more than a small model does. So rows of the same model and shape are bunched here, before they
are tasks; a bunch is one request, whose result is cut up again. Where a bunch fails, each of its requests runs by itself.

Whatever goes wrong on the way in has its place among the results: those before it come first.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from rankwise.pool.inlet import cut_value, is_one_array
from rankwise.pool.nested import has_rows
from rankwise.pool.schedule import ModelState
from rankwise.pool.seeds import seed_of
from rankwise.pool.tasks import Parcel
from rankwise.pool.verdicts import PoolClosed, PoolFull
from rankwise.pool.wire import INLINE_BYTES

_MOST, _MOST_FUTURES = 8192, 512  # requests under way, and futures for them, where nobody said
_FIRST, _LARGEST = 8, 256  # requests of a bunch: few at first, so that the workers have something to do soon
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
        self._is_array = False
        self.is_spoilt = False  # each of its requests has to run by itself

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
            self.is_spoilt = self.model.max_batch == 1 or not has_rows(self._value, self.rows)  # it may have turned out to know no rows
        except PoolClosed:
            raise
        except Exception:  # of one of them, perhaps
            self.is_spoilt = True
        self.is_here = True

    def result(self, i: int) -> Any:
        """Of its i-th request."""
        start, stop = self.edges[i], self.edges[i + 1]
        return self._value[start:stop] if self._is_array else cut_value(self._value, start, stop)


class Later:
    """A request that found no room beside the results that were here and not fetched yet: it is sent when these have been."""

    def __init__(self, act: Callable[[], Future[Any]]) -> None:
        self.act = act


class Stream:
    """One pass over a source of requests; at most `window` of them are under way, or as many bunches where nobody said."""

    def __init__(
        self,
        parcel: Callable[[ModelState, Sequence[Any]], Parcel],
        submit: Callable[..., Future[Any]],
        has_open_tasks: Callable[[], bool],
        window: int | None,
        seed: int | None,
    ) -> None:
        self._parcel, self._submit, self._has_open_tasks = parcel, submit, has_open_tasks
        self._most, self._most_futures = window or _MOST, window or _MOST_FUTURES
        self._waiting: deque[tuple[Bunch, int] | Future[Any] | Later] = deque()
        self._is_short = False  # of room, until a result has been fetched
        self._num_futures = 0  # of those that wait
        self._open: dict[Any, Bunch] = {}
        self._limit = _FIRST
        self._seed, self._taken = seed, 0

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
                        if len(waiting) >= self._most or self._num_futures >= self._most_futures or self._is_short:
                            break
                        if (is_slow or not len(waiting) % _LOOK) and self._is_first_done():
                            break
                    else:
                        self._send_all()
                except Exception as error:  # of the source: the end of it
                    source = iter(())
                    self._num_futures += 1
                    waiting.append(failed(error))
                if not waiting:
                    return
                yield self._next()
                while waiting and self._is_first_done():  # what is here already, before the source is asked for more
                    yield self._next()
                last = monotonic()
        finally:
            for future in self._futures():
                future.cancel()

    def _take(self, model: ModelState, inputs: Sequence[Any], deadline_s: float | None, is_slow: bool) -> None:
        future: Future[Any] | Later
        seed = seed_of(self._seed, self._taken)
        self._taken += 1
        try:
            parcel = self._parcel(model, inputs)
            node, _, slots, to_tensor = parcel
            if model.max_batch > 1 and self._limit > 1 and deadline_s is None and seed is None and not slots and is_one_array(node):
                tag, dtype, shape, data = node[1][0]
                if shape and 0 < shape[0] < model.max_batch:
                    self._bunch(model, (model.number, tag, dtype, shape[1:], to_tensor), shape[0], data)
                    return
            future = self._submit(model, parcel, deadline_s, is_lazy=not is_slow, seed=seed)
        except PoolFull:  # the inputs are read again: a task that was refused has let go of its place on the lane
            future = self._when_there_is_room(lambda: self._submit(model, self._parcel(model, inputs), deadline_s, is_lazy=True, seed=seed))
        except Exception as error:  # it cannot be sent
            future = failed(error)
        self._num_futures += 1
        self._waiting.append(future)

    def _when_there_is_room(self, act: Callable[[], Future[Any]]) -> Future[Any] | Later:
        future = self._patiently(act, was_refused=True)
        if not self._waiting or not future.done() or not isinstance(future.exception(), PoolFull):
            return future
        self._is_short = True
        return Later(act)

    def _bunch(self, model: ModelState, kind: tuple[Any, ...], rows: int, data: bytes) -> None:
        bunch = self._open.get(kind)
        if bunch is not None and (bunch.rows + rows > model.max_batch or bunch.size + len(data) > 4 * INLINE_BYTES):
            self._send(bunch)
            bunch = None
        if bunch is None:
            bunch = self._open[kind] = Bunch(model, kind)
            self._num_futures += 1
        self._waiting.append((bunch, len(bunch.data)))
        bunch.data.append(data)
        bunch.rows += rows
        bunch.edges.append(bunch.rows)
        bunch.size += len(data)
        if len(bunch.data) >= self._limit:
            self._send(bunch)
            self._limit = min(_LARGEST, 2 * self._limit)

    def _send_all(self) -> None:
        for bunch in list(self._open.values()):
            self._send(bunch)

    def _send(self, bunch: Bunch) -> None:
        del self._open[bunch.kind]
        bunch.future = self._patiently(lambda: self._submit(bunch.model, bunch.parcel(), is_lazy=True))

    def _next(self) -> Any:
        head = self._waiting.popleft()
        if type(head) is not tuple:
            self._num_futures -= 1
            if type(head) is Later:
                self._is_short = False
                head = self._patiently(head.act)
            return head.result()  # type: ignore[union-attr]
        bunch, i = head
        if not bunch.is_here:
            if bunch.future is None:
                self._send(bunch)
            bunch.wait()
            self._num_futures -= 1
        if bunch.is_spoilt:
            return self._patiently(lambda: self._submit(bunch.model, bunch.parcel(i, i + 1))).result()
        return bunch.result(i)

    def _is_first_done(self) -> bool:
        head = self._waiting[0]
        if type(head) is Later:
            return True
        future = head[0].future if type(head) is tuple else head
        return future is not None and future.done()  # type: ignore[union-attr]

    def _futures(self) -> list[Future[Any]]:
        heads = [head[0].future if type(head) is tuple else head for head in self._waiting if type(head) is not Later]
        return [future for future in heads if future is not None]  # type: ignore[misc]

    def _patiently(self, act: Callable[[], Future[Any]], was_refused: bool = False) -> Future[Any]:
        """Where the queue or the lane is full, wait; where nobody is left who could make room, and where it cannot be done at all, that is
        what becomes of the request."""
        is_hopeless = was_refused and not self._has_waited()
        while True:
            try:
                return act()
            except PoolFull as error:
                if is_hopeless and not self._has_open_tasks():
                    return failed(error)
            except Exception as error:
                return failed(error)
            is_hopeless = not self._has_waited()

    def _has_waited(self) -> bool:
        """For one of our own, or for others; False where nothing is under way, though what was a moment ago may just have made room."""
        unfinished = next((future for future in self._futures() if not future.done()), None)
        if unfinished is not None:
            unfinished.exception()
        elif self._has_open_tasks():
            time.sleep(PATIENCE_S)
        else:
            return False
        return True


def failed(error: Exception) -> Future[Any]:
    """What becomes of a request that never was one."""
    future: Future[Any] = Future()
    future.set_exception(error)
    return future
