"""Work that may block for minutes: in a thread of its own, so that whoever waits can give up, or look around meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Task(Generic[Result]):
    """Begins at once; once it is done, `error` is what it raised, else `result` what it returned."""

    def __init__(self, work: Callable[[], Result], name: str) -> None:
        self.result: Result | None = None
        self.error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"rankwise-{name}")
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:
            self.error = error

    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return self.is_done()
