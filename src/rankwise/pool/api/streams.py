"""Results in the order of their requests, with a bounded number under way: the engine of `map` and `amap`, of the pool and its ensembles.

What fails before a request is submitted is raised in its place among the results: results of the requests before it come first."""

from __future__ import annotations

import asyncio
import operator
import resource
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rankwise.errors import UsageError
from rankwise.pool.api.model import check_number, shown
from rankwise.pool.errors import PoolFull
from rankwise.pool.schedule.state import monotonic

WINDOW = 64  # requests under way if the caller did not say and each has a future of its own
PATIENCE_S = 0.005  # between two looks whether other callers' tasks have made room
_LOOK = 16  # requests of a quick source between two looks whether a result is there
_SLOW_S = 0.0005  # a source that takes this long for one request is slow: each request is sent at once
_OVER = object()


class Postponed:
    """Stands for a request that finds no room until the caller has fetched earlier results; it is sent when its own result is asked for."""

    def __init__(self, send: Callable[[], Future[Any]]) -> None:
        self._send = send

    def done(self) -> bool:
        return True

    def cancel(self) -> bool:
        return True

    def result(self) -> Any:
        return self._send().result()


class Stream:
    """One pass over a source of requests; `submit` sends one, and at most `window` of them are under way."""

    def __init__(self, submit: Callable[..., Future[Any]], has_open_tasks: Callable[[], bool], window: int = WINDOW) -> None:
        self._submit, self._has_open_tasks, self._most = submit, has_open_tasks, window
        self._waiting: deque[Any] = deque()  # a future for each request, or what stands for one, in order
        self._num_futures, self._most_futures = 0, window  # futures among them: several requests of a group share one
        self._is_short = False  # no room for more requests, until the finished results have been fetched
        self._switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw  # times this thread had to give its core away

    def results(self, requests: Iterable[Any]) -> Iterator[Any]:
        source, waiting, take = iter(requests), self._waiting, self._take
        last = monotonic()
        try:
            while True:
                try:
                    for request in () if self._is_short else source:
                        now = monotonic()
                        is_slow, last = now - last > _SLOW_S and not self._was_preempted(), now
                        take(request, is_slow)
                        size = len(waiting)
                        if size >= self._most or self._num_futures >= self._most_futures or self._is_short:
                            break
                        if (is_slow or not size % _LOOK) and waiting[0].done():
                            break
                    else:
                        self._send_all()
                except Exception as error:  # the source raised it, and is over then
                    source = iter(())
                    waiting.append(failed(error))
                if not waiting:
                    return
                yield from self._next()
                while waiting and waiting[0].done():  # finished results come before the source is asked for more
                    yield from self._next()
                last = monotonic()
        finally:
            if waiting:
                _cancel(list(dict.fromkeys(waiting)))

    def _was_preempted(self) -> bool:
        """Whether this thread had to wait for a core: then the time was not the source's. The workers may keep all cores busy."""
        switches, self._switches = self._switches, resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
        return self._switches != switches

    def _take(self, request: Any, is_slow: bool) -> None:
        inputs = request if isinstance(request, tuple) else (request,)
        self._waiting.append(self._sent(lambda: self._submit(*inputs)))

    def _send_all(self) -> None:
        """Send the requests that were kept back; only a stream that groups requests keeps some back."""

    def _sent(self, act: Callable[[], Future[Any]]) -> Future[Any] | Postponed:
        """Send a request when there is room for it; returns its future, or what stands for it."""
        try:
            try:
                return act()
            except PoolFull:
                self._send_all()  # requests that are kept back can make no room
            return self._patiently(act)
        except PoolFull as error:
            if not self._waiting:
                return failed(error)
            self._is_short = True
            return Postponed(partial(self._send_postponed, act))
        except Exception as error:  # it cannot be sent
            return failed(error)

    def _send_postponed(self, act: Callable[[], Future[Any]]) -> Future[Any]:
        self._is_short = False
        return self._patiently(act)

    def _patiently(self, act: Callable[[], Future[Any]]) -> Future[Any]:
        """Try to send until there is room in the queue and the arena; raises PoolFull where nothing is under way that could make some."""
        is_hopeless = False
        while True:
            try:
                return act()
            except PoolFull:
                if is_hopeless and not self._has_open_tasks():
                    raise
            is_hopeless = False
            if (future := self._unfinished()) is not None:
                future.exception()
            elif self._has_open_tasks():  # those of other callers
                time.sleep(PATIENCE_S)
            else:
                is_hopeless = True  # a task that was open a moment ago may just have made room: try once more

    def _next(self) -> Iterator[Any]:
        """The results of the first entry in line; a future has one."""
        yield self._waiting.popleft().result()  # not in a variable: an exception's traceback would hold the future that holds it

    def _unfinished(self) -> Any:
        return next((future for future in self._waiting if not future.done()), None)


_CANCEL_S = 1.0


def _cancel(entries: list[Any]) -> None:
    """Cancel them in a thread of their own, because cancelling takes locks: where the garbage collector ends a stream, it has interrupted
    this thread in the middle of any step, and the thread may hold one of them."""

    def cancel_all() -> None:
        for entry in entries:
            entry.cancel()

    if sys.is_finalizing():  # no thread would start any more
        cancel_all()
        return
    thread = threading.Thread(target=cancel_all, name="rankwise-cancel", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads
        cancel_all()
    else:
        thread.join(_CANCEL_S)


def failed(error: BaseException) -> Future[Any]:
    """The future of a request that was never sent."""
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


class AsyncStream:
    """A stream for asyncio, which never blocks the event loop. `submit` is given an input and its number."""

    def __init__(self, submit: Callable[[Any, int], Future[Any]], has_open_tasks: Callable[[], bool], window: int) -> None:
        self._submit, self._has_open_tasks, self._window = submit, has_open_tasks, window
        self._waiting: deque[asyncio.Future[Any]] = deque()

    async def results(self, inputs: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
        source, waiting, number = aiter(inputs) if isinstance(inputs, AsyncIterable) else iter(inputs), self._waiting, 0
        coming: asyncio.Future[Any] | None = None
        asked: asyncio.Queue[asyncio.Future[Any]] = asyncio.Queue()
        asking = [asyncio.ensure_future(_ask(source, asked))] if isinstance(inputs, AsyncIterable) else []
        is_over = False
        try:
            while True:
                while len(waiting) < self._window and not is_over:
                    coming = coming or _next_of(source, asked)
                    if coming.done():
                        await asyncio.sleep(0)  # a turn for the task that brings results
                    else:
                        arriving = [coming, *asking, waiting[0]] if waiting else [coming, *asking]
                        await asyncio.wait(arriving, return_when=asyncio.FIRST_COMPLETED)
                        if asking and asking[0].done():  # a timeout that the source has entered ended it, between two inputs
                            coming.cancel()
                    if not coming.done() or (waiting and waiting[0].done()):  # a finished result must not wait for the source
                        break
                    if coming.exception() is None and coming.result() is _OVER:
                        is_over = True
                        break
                    future = await self._sent(coming, number)
                    if future is None:
                        break
                    waiting.append(asyncio.wrap_future(future))
                    is_over = coming.exception() is not None
                    coming, number = None, number + 1
                if not waiting:
                    return
                yield await waiting.popleft()
        finally:
            left = [*waiting, *asking] if coming is None else [*waiting, *asking, coming]
            for waiter in left:
                waiter.cancel()
            await asyncio.gather(*left, return_exceptions=True)  # or asyncio would complain about exceptions that were never retrieved

    async def _sent(self, coming: asyncio.Future[Any], number: int) -> Future[Any] | None:
        """The future of the next request; None if it has to wait until the caller has fetched results that are finished."""
        is_hopeless = False
        while True:
            try:
                return self._submit(coming.result(), number)
            except PoolFull as error:
                if is_hopeless and not self._has_open_tasks():
                    return None if self._waiting else failed(error)
            except Exception as error:  # the source raised it, or the request cannot be sent
                return failed(error)
            is_hopeless = False
            if unfinished := [future for future in self._waiting if not future.done()]:
                await asyncio.wait(unfinished[:1])
            elif self._has_open_tasks():
                await asyncio.sleep(PATIENCE_S)
            else:
                is_hopeless = True


def _next_of(source: Any, asked: asyncio.Queue[asyncio.Future[Any]]) -> asyncio.Future[Any]:
    """A future of the next input, from a source of either kind; `_OVER` at its end. An async source is asked by `_ask`."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    if hasattr(source, "__anext__"):
        asked.put_nowait(future)
        return future
    try:
        future.set_result(next(source, _OVER))
    except Exception as error:
        future.set_exception(error)
    return future


async def _ask(source: Any, asked: asyncio.Queue[asyncio.Future[Any]]) -> None:
    """Get an input for each future, all in one task: a task group, a timeout or a context variable that a source enters has to be left in
    the task where it was entered."""
    while True:
        future = await asked.get()
        try:
            future.set_result(await anext(source, _OVER))
        except Exception as error:
            future.set_exception(error)
        except BaseException:
            future.cancel()
            raise


async def awaited(future: Any) -> Any:
    """The result of a pool's future, as `asyncio.wrap_future` gives it, but quicker if the loop's own thread reads the answer."""
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
            except RuntimeError:  # the loop is closed, so no task waits any more
                pass

    future.add_done_callback(is_done)
    try:
        await waiter
    except asyncio.CancelledError:
        future.cancel()
        raise
    return future.result()


class StreamOptions(NamedTuple):
    """The options of a stream, checked."""

    window: int | None
    deadline_s: float | None
    priority: int
    seed: int | None
    length: int  # of its source; 0 if unknown


def stream_options(source: Any, window: Any, deadline_s: Any, priority: Any, seed: Any) -> StreamOptions:
    check_window(window)
    try:
        length = operator.length_hint(source)
    except Exception:  # its __len__ may raise anything
        length = 0
    return StreamOptions(window, *checked_options(deadline_s, priority, seed), length)


def checked_options(deadline_s: Any, priority: Any, seed: Any) -> tuple[float | None, int, int | None]:
    """The options of a task, as Python's own numbers; raises UsageError."""
    deadline_s, priority, seed = [value.item() if isinstance(value, np.generic) else value for value in (deadline_s, priority, seed)]
    check_number("deadline_s", deadline_s, none=True)
    check_number("priority", priority, whole=True)
    return deadline_s, priority, checked_seed(seed)


def check_window(window: Any) -> None:
    check_number("window", window, least=1, whole=True, none=True)


def is_request(request: Any) -> bool:
    """True for a request of `stream`; raises UsageError for anything else."""
    if not isinstance(request, (tuple, list)) or not request:
        raise UsageError(
            f"a request is {shown(request)}; it must be a tuple of a model's name and its inputs", next=('pool.stream([("mlp", x)])',)
        )
    return True


_LEAST, _MOST = -(2**63), 2**64 - 1  # what torch.manual_seed takes


def checked_seed(seed: Any) -> int | None:
    is_number = isinstance(seed, (int, np.integer)) and not isinstance(seed, bool)
    if seed is not None and not (is_number and _LEAST <= seed <= _MOST):
        raise UsageError(f"seed must be a whole number that torch.manual_seed takes, not {seed!r}", next=("seed=0",))
    return None if seed is None else int(seed)
