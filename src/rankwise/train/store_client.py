"""A client of the rendezvous store, through which the ranks write to each other; every question has a time limit.

torch's client waits for ever for an answer that got lost on the way, and holds off Ctrl-C meanwhile. So a thread asks, and the
rank waits for the thread, in Python. After a timeout the connection is stuck for good, and so is its thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]

from rankwise.errors import StartError
from rankwise.findings import Finding
from rankwise.meet.threads import ThreadTask
from rankwise.train.errors import start_finding

_LIMIT_S = 15.0  # a store that is alive answers in milliseconds
TELL_AFTER_S = 3.0  # before a rank says which ranks it waits for
TELL_EVERY_S = 10.0
_BULK = "x" * 8192  # large enough for full-size packets both ways


class StoreLost(StartError):
    """The store has gone away, or its answers do not arrive."""


def find_loss(said: str) -> Finding:
    return start_finding("RW111", "the connection to the store was lost", why=said)


class StoreClient:
    """One connection to the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.find_loss = find_loss  # a caller that knows more about a loss replaces it

    def add(self, key: str, amount: int) -> int:
        return int(self._ask(lambda: self._store.add(key, amount)))

    def put(self, key: str, text: str) -> None:
        self._ask(lambda: self._store.set(key, text))

    def put_first(self, key: str, text: str) -> str:
        """Write unless another rank has written; returns what the key holds."""
        return str(self._ask(lambda: self._store.compare_set(key, "", text).decode()))

    def look(self, key: str) -> str | None:
        """The key's present value; None if it has none."""
        text: str | None = self._ask(lambda: self._store.get(key).decode() if self._store.check([key]) else None)
        return text

    def wait(self, key: str, deadline: float, tell: Callable[[float], None] | None = None) -> str | None:
        """The key's value, as soon as it has one; None when the time is over. `tell` is called now and then meanwhile.

        It asks again and again, because torch's own blocking wait logs each timeout.
        """
        began = time.monotonic()
        told_at, pauses = began - TELL_EVERY_S + TELL_AFTER_S, pauses_s()
        while (text := self.look(key)) is None:
            now = time.monotonic()
            if now >= deadline:
                return None
            if tell and now - told_at > TELL_EVERY_S:
                told_at = now
                tell(now - began)
            time.sleep(min(next(pauses), deadline - now))
        return text

    def carries_bulk(self, key: str, limit_s: float) -> bool:
        """Whether a value of more than one packet comes back within the limit."""

        def there_and_back() -> bool:
            self._store.set(key, _BULK)
            is_whole = bool(self._store.get(key).decode() == _BULK)
            self._store.delete_key(key)
            return is_whole

        try:
            return bool(self._ask(there_and_back, limit_s))
        except StoreLost:
            return False

    def _ask(self, question: Callable[[], Any], limit_s: float = _LIMIT_S) -> Any:
        task = ThreadTask(question, "store")
        if not task.wait(limit_s):
            raise StoreLost(self.find_loss(f"it has not answered for {limit_s:.0f} s"))
        if task.error is not None:
            raise StoreLost(self.find_loss(f"the connection broke ({str(task.error).splitlines()[0][:160]})")) from None
        return task.result


def pauses_s(first_s: float = 0.0005, longest_s: float = 0.05) -> Iterator[float]:
    """The pauses between two looks: very short at first, because most waits are short."""
    pause_s = first_s
    while True:
        yield pause_s
        pause_s = min(1.4 * pause_s, longest_s)
