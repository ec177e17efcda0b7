"""kombu's Redis transport with one client for each channel: kombu makes a new one for each command, which takes longer than that."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


@cache
def redis_transport() -> Any:
    """A class for `kombu.Connection(transport=…)`. Made when it is asked for, because kombu may not be installed."""
    theirs: Any = importlib.import_module("kombu.transport.redis")

    class Channel(theirs.Channel):  # type: ignore[misc]
        _kept: Any = None  # not the one that waits for messages, which is busy with that

        @contextmanager
        def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
            if client is None:
                self._kept = client = self._kept or self._create_client()
            yield client

    class Transport(theirs.Transport):  # type: ignore[misc]
        pass

    Transport.Channel = Channel
    return Transport
