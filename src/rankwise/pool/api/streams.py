"""Results in the order of their requests, with a bounded number under way: the engine of `map` and `amap`, of the pool and its ensembles.

Whatever goes wrong on the way in has its place among the results: results of the requests before it come first."""

from __future__ import annotations

import asyncio
import math
import operator
import resource
import threading
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from numbers import Real
from typing import Any

from rankwise.errors import UsageError
from rankwise.pool.api.model import shown
from rankwise.pool.errors import PoolFull

WINDOW = 64  # requests under way where each has a future of its own, and the caller did not say
PATIENCE_S = 0.005  # between two looks whether other callers' tasks have made room
_LOOK = 16  # requests of a quick source between two looks whether a result is there
_SLOW_S = 0.0005  # a source that takes this long for one request is slow: each request is sent at once
_OVER = object()


class Postponed:
    """A request that found no room beside results that the caller has not fetched yet: it is sent when the caller has."""

    def __init__(self, act: Callable[[], Future[Any]]) -> None:
        self.act = act


class Stream:
    """One pass over a source of requests; `submit` sends one, and at most `window` of them are under way."""

    def __init__(self, submit: Callable[..., Future[Any]], has_open_tasks: Callable[[], bool], window: int = WINDOW) -> None:
        self._submit, self._has_open_tasks, self._most = submit, has_open_tasks, window
        self._waiting: deque[Any] = deque()  # futures and postponed requests, in order
        self._requests = 0  # that wait
        self._is_short = False  # of room, until a result has been fetched
        self._switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw  # times this thread had to give its core away

    def results(self, requests: Iterable[Any]) -> Iterator[Any]:
        source, waiting, monotonic = iter(requests), self._waiting, time.monotonic
        last = monotonic()
        try:
            while True:
                try:
                    for request in source:
                        now = monotonic()
                        is_slow, last = now - last > _SLOW_S and not self._was_preempted(), now
                        self._take(request, is_slow)
                        self._requests += 1
                        if self._is_full():
                            break
                        if (is_slow or not self._requests % _LOOK) and self._is_first_done():
                            break
                    else:
                        self._send_all()
                except Exception as error:  # of the source, which ends with it
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
            self._cancel()

    def _was_preempted(self) -> bool:
        """Whether the time was not the source's: on a machine whose cores the workers keep busy, this thread has to wait for one."""
        switches, self._switches = self._switches, resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
        return self._switches != switches

    def _take(self, request: Any, is_slow: bool) -> None:
        inputs = request if isinstance(request, tuple) else (request,)
        self._add(self._sent(lambda: self._submit(*inputs)))

    def _add(self, entry: Future[Any] | Postponed) -> None:
        self._waiting.append(entry)

    def _is_full(self) -> bool:
        return self._requests >= self._most or self._is_short

    def _send_all(self) -> None:
        """Send what was kept back so far; a stream that groups requests has such."""

    def _sent(self, act: Callable[[], Future[Any]]) -> Future[Any] | Postponed:
        """What becomes of a request: its future, once there is room for it."""
        try:
            return act()
        except PoolFull:
            self._send_all()  # what is not even sent makes no room
        except Exception as error:  # it cannot be sent
            return failed(error)
        future = self._patiently(act, was_refused=True)
        if not self._waiting or type(future) is not Refused:
            return future
        self._is_short = True
        return Postponed(act)

    def _patiently(self, act: Callable[[], Future[Any]], was_refused: bool = False) -> Future[Any]:
        steps = patiently(act, self._unfinished, self._has_open_tasks, was_refused)
        while True:
            try:
                step = next(steps)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            if isinstance(step, float):
                time.sleep(step)
            else:
                step.exception()

    def _next(self) -> Iterator[Any]:
        """Results that the first entry in line gives, which is one where it is a future."""
        yield self._first().result()  # not kept in a variable: the traceback of what it raises would hold it, and it holds that

    def _first(self) -> Future[Any]:
        head = self._waiting.popleft()
        self._requests -= 1
        if type(head) is Postponed:
            self._is_short = False
            return self._patiently(head.act)
        return head  # type: ignore[no-any-return]

    def _is_first_done(self) -> bool:
        head = self._waiting[0]
        return type(head) is Postponed or head.done()

    def _futures(self) -> list[Future[Any]]:
        return [head for head in self._waiting if type(head) is not Postponed]

    def _unfinished(self) -> Future[Any] | None:
        return next((future for future in self._futures() if not future.done()), None)

    def _cancel(self) -> None:
        for future in self._futures():
            future.cancel()


def patiently(
    act: Callable[[], Future[Any]],
    unfinished: Callable[[], Any],
    has_open_tasks: Callable[[], bool],
    was_refused: bool = False,
) -> Generator[Any, None, Future[Any]]:
    """Try to send until there is room in the queue and in the arena. Yields what the caller has to wait for before the next attempt: one
    of its own futures, or some seconds while other callers' tasks are open. Where nothing is under way that could make room, and where
    sending fails for another reason, the future it returns holds that error."""
    is_hopeless = False
    while True:
        if not was_refused:
            try:
                return act()
            except PoolFull as error:
                if is_hopeless and not has_open_tasks():
                    return failed(error, Refused())
            except Exception as error:
                return failed(error)
        was_refused, is_hopeless = False, False
        future = unfinished()
        if future is not None:
            yield future
        elif has_open_tasks():
            yield PATIENCE_S
        else:
            is_hopeless = True  # though a task that was open a moment ago may just have made room: once more


class Refused(Future[Any]):
    """The future of a request for which there is no room, although nothing is under way that could make some."""


def failed(error: Exception, future: Future[Any] | None = None) -> Future[Any]:
    """The future of a request that was never sent."""
    future = future or Future()
    future.set_exception(error)
    return future


class AsyncStream:
    """The same for asyncio: the event loop never waits for any of it. `submit` is given an input and its number."""

    def __init__(self, submit: Callable[[Any, int], Future[Any]], has_open_tasks: Callable[[], bool], window: int) -> None:
        self._submit, self._has_open_tasks, self._window = submit, has_open_tasks, window
        self._waiting: deque[asyncio.Future[Any]] = deque()

    async def results(self, inputs: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
        source, waiting = AsyncSource(inputs), self._waiting
        try:
            while True:
                while len(waiting) < self._window and await source.has_item(waiting[0] if waiting else None):
                    if not await self._take(source):
                        break
                if not waiting:
                    return
                yield await waiting.popleft()
        finally:
            for future in waiting:
                _is_let_go(future)
            await source.close()

    async def _take(self, source: AsyncSource) -> bool:
        """Send the next; False where it has to wait until results that are here have been fetched."""
        steps = patiently(lambda: self._submit(source.item(), source.number), self._unfinished, self._has_open_tasks)
        while True:
            try:
                step = next(steps)
            except StopIteration as done:
                future: Future[Any] = done.value
                break
            await (asyncio.sleep(step) if isinstance(step, float) else asyncio.wait([step]))
        if self._waiting and type(future) is Refused:
            return False
        self._waiting.append(asyncio.wrap_future(future))
        source.go_on()
        return True

    def _unfinished(self) -> asyncio.Future[Any] | None:
        return next((future for future in self._waiting if not future.done()), None)


class AsyncSource:
    """The inputs, one at a time, from wherever they come; an exception of theirs is the last of them."""

    def __init__(self, inputs: Iterable[Any] | AsyncIterable[Any]) -> None:
        self._is_async = isinstance(inputs, AsyncIterable)
        self._inputs: Any = aiter(inputs) if isinstance(inputs, AsyncIterable) else iter(inputs)
        self._coming: asyncio.Future[Any] | None = None
        self.number = 0  # of the one that comes

    async def has_item(self, first: asyncio.Future[Any] | None) -> bool:
        """Whether the next one is here, or will be before the first result, which is not to wait for it."""
        if self._coming is None:
            self._coming = self._next()
        if self._is_async:
            await asyncio.wait([self._coming] if first is None else [self._coming, first], return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(0)  # a turn for the task that brings results
        is_first_here = first is not None and first.done()
        return self._coming.done() and not is_first_here and not self._is_over()

    def item(self) -> Any:
        assert self._coming is not None
        return self._coming.result()

    def go_on(self) -> None:
        """The item has been taken."""
        assert self._coming is not None
        self.number += 1
        self._coming = None if self._coming.exception() is None else _done(_OVER)

    async def close(self) -> None:
        if self._coming is not None and not _is_let_go(self._coming):
            await asyncio.wait([self._coming])

    def _is_over(self) -> bool:
        assert self._coming is not None
        return self._coming.exception() is None and self._coming.result() is _OVER

    def _next(self) -> asyncio.Future[Any]:
        if self._is_async:
            return asyncio.ensure_future(anext(self._inputs, _OVER))
        try:
            return _done(next(self._inputs, _OVER))
        except Exception as error:
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            future.set_exception(error)
            return future


def _is_let_go(future: asyncio.Future[Any]) -> bool:
    """Whether it is over already; otherwise it is cancelled. An exception is looked at, or asyncio would complain that it never was."""
    if future.cancel():
        return False
    if not future.cancelled():
        future.exception()
    return True


def _done(value: Any) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_result(value)
    return future


async def awaited(future: Any) -> Any:
    """The result of a pool's future. As `asyncio.wrap_future`, without a detour through the loop where its own thread reads the answer."""
    if future.done():
        return future.result()
    loop, thread = asyncio.get_running_loop(), threading.get_ident()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def is_done(_: Any) -> None:
        if threading.get_ident() == thread:
            wake()
        else:
            try:
                loop.call_soon_threadsafe(wake)
            except RuntimeError:  # the loop is closed, and nobody waits any more
                pass

    future.add_done_callback(is_done)
    try:
        await waiter
    except asyncio.CancelledError:
        future.cancel()
        raise
    return future.result()


def checked_deadline(deadline_s: Any) -> float | None:
    if deadline_s is None:
        return None
    if not isinstance(deadline_s, Real) or math.isnan(deadline_s):
        raise UsageError(f"deadline_s must be a number of seconds, not {deadline_s!r}", next=("deadline_s=0.5",))
    return float(deadline_s)


def checked_priority(priority: Any) -> int:
    try:
        return operator.index(priority)
    except TypeError:
        raise UsageError(
            f"priority must be a whole number, not {priority!r}", why="tasks with a higher one go first; 0 is usual", next=("priority=1",)
        ) from None


def check_window(window: Any) -> None:
    try:
        is_right = window is None or operator.index(window) >= 1
    except TypeError:
        is_right = False
    if not is_right:
        raise UsageError(f"window must be a whole number of at least 1, not {window!r}", why="it is how many requests may be under way")


def is_request(request: Any) -> bool:
    """True for a request of `stream`; raises UsageError for anything else."""
    if not isinstance(request, (tuple, list)) or not request:
        raise UsageError(
            f"a request is {shown(request)}; it must be a tuple of a model's name and its inputs", next=('pool.stream([("mlp", x)])',)
        )
    return True


_LEAST, _MOST = -(2**63), 2**64 - 1  # what torch.manual_seed takes


def checked_seed(seed: Any) -> int | None:
    if seed is None:
        return None
    try:
        number = operator.index(seed)
    except TypeError:
        number = _LEAST - 1
    if isinstance(seed, bool) or not _LEAST <= number <= _MOST:
        raise UsageError(f"seed must be a whole number that torch.manual_seed takes, not {seed!r}", next=("seed=0",))
    return number
