"""Work that may block for minutes: in a thread of its own, so that whoever waits can give up, or look around meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Task(Generic[Result]):
    """Begins at once; once it is done, `error` is what it raised, else `result` what it returned."""

    def __init__(self, work: Callable[[], Result], name: str, *, daemon: bool = True) -> None:
        self.result: Result | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=daemon, name=f"rankwise-{name}")  # which forgets `work`
        self._thread.start()

    def _run(self, work: Callable[[], Result]) -> None:
        try:
            self.result = work()
        except BaseException as error:
            self.error = error

    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self, timeout_s: float | None = None) -> bool:
        self._thread.join(timeout_s)
        return self.is_done()
