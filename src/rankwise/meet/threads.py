"""Runs work that may block for minutes in threads of their own, so that the caller can stop waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

Result = TypeVar("Result")
Key = TypeVar("Key", bound=Hashable)


class ThreadTask(Generic[Result]):
    """Begins at once; once it is done, `error` is what it raised, else `result` what it returned."""

    def __init__(self, work: Callable[[], Result], name: str, *, daemon: bool = True) -> None:
        self.result: Result | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=daemon, name=f"rankwise-{name}")  # drops `work` at its end
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


def run_all(calls: Mapping[Key, Callable[[], Result | None]], timeout_s: float) -> dict[Key, Result]:
    """The results of the calls that returned in time, each made in a thread; calls that failed or are too slow are left out."""
    deadline = time.monotonic() + timeout_s
    tasks = {key: ThreadTask(call, "at-once") for key, call in calls.items()}
    for task in tasks.values():
        task.wait(max(0.0, deadline - time.monotonic()))
    return {key: task.result for key, task in tasks.items() if task.result is not None}
