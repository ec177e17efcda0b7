"""Many requests one after the other, results in the same order; at most `window` of them under way."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from rankwise.pool.api.streams import PATIENCE_S, failed
from rankwise.pool.backend import Requests
from rankwise.pool.errors import PoolFull
from rankwise.pool.schedule.state import seed_of

_WINDOW = 4096


def in_order(
    submit: Callable[..., Future[Any]], requests: Requests, window: int | None, seed: int | None, has_open_tasks: Callable[[], bool]
) -> Iterator[Any]:
    """What goes wrong on the way in has its place among the results: those before it come first."""
    waiting: deque[Future[Any]] = deque()
    source = enumerate(requests)
    try:
        while True:
            try:
                number, (model, inputs) = next(source)
            except StopIteration:
                break
            except Exception as error:  # of the source: the end of it
                waiting.append(failed(error))
                break
            while (future := _sent(submit, model, inputs, seed_of(seed, number))) is None:
                if waiting:
                    yield waiting.popleft().result()
                elif has_open_tasks():
                    time.sleep(PATIENCE_S)  # others have filled the queue
            waiting.append(future)
            if len(waiting) >= (window or _WINDOW) or waiting[0].done():
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def _sent(submit: Callable[..., Future[Any]], model: Any, inputs: Any, seed: int | None) -> Future[Any] | None:
    """None where there is no room now."""
    try:
        return submit(model, tuple(inputs), seed=seed)
    except PoolFull:
        return None
    except Exception as error:
        return failed(error)
