"""`map` for asyncio: the same order, patience and places of errors, and a loop that never waits for any of it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from concurrent.futures import Future
from typing import Any

from rankwise.pool.stream import PATIENCE_S
from rankwise.pool.verdicts import PoolFull

Submit = Callable[[Any, int], Future[Any]]  # of an input, and its number
_OVER = object()


class AsyncStream:
    """One pass over a source of inputs; at most `window` of them are under way."""

    def __init__(self, submit: Submit, has_open_tasks: Callable[[], bool], window: int) -> None:
        self._submit, self._has_open_tasks, self._window = submit, has_open_tasks, window
        self._waiting: deque[asyncio.Future[Any]] = deque()

    async def results(self, inputs: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
        source, waiting = Source(inputs), self._waiting
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

    async def _take(self, source: Source) -> bool:
        """Send the next; False where it has to wait until results that are here have been fetched."""
        is_hopeless = False
        while True:
            try:
                self._waiting.append(asyncio.wrap_future(self._submit(source.item(), source.number)))
            except PoolFull as error:
                if not is_hopeless or self._has_open_tasks():
                    is_hopeless = not await self._has_waited()
                    continue
                if self._waiting:
                    return False
                self._waiting.append(_failed(error))
            except Exception as error:  # of the source, or it cannot be sent
                self._waiting.append(_failed(error))
            source.go_on()
            return True

    async def _has_waited(self) -> bool:
        """For one of our own, or for others; False where there is nobody left who could make room."""
        unfinished = next((future for future in self._waiting if not future.done()), None)
        if unfinished is not None:
            await asyncio.wait([unfinished])
        elif self._has_open_tasks():
            await asyncio.sleep(PATIENCE_S)
        else:
            return False
        return True


class Source:
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
            await asyncio.sleep(0)  # a turn for whoever brings results
        is_first_here = first is not None and first.done()
        return self._coming.done() and not is_first_here and not self._is_over()

    def item(self) -> Any:
        assert self._coming is not None
        return self._coming.result()

    def go_on(self) -> None:
        """That one has been taken."""
        assert self._coming is not None
        self.number += 1
        if self._coming.exception() is None:
            self._coming = None
        else:
            self._coming = _done(_OVER)

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
            return _failed(error)


def _is_let_go(future: asyncio.Future[Any]) -> bool:
    """Whether it is over already; otherwise it is asked to be. An exception is looked at, or asyncio would complain that nobody has."""
    if future.cancel():
        return False
    if not future.cancelled():
        future.exception()
    return True


def _done(value: Any) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_result(value)
    return future


def _failed(error: Exception) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future
