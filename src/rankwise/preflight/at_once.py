"""Several calls at once that may hang: what does not come back in time is left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")


def run_all(calls: Mapping[Key, Callable[[], Answer]], timeout_s: float) -> dict[Key, Answer]:
    """The answers, each worked out in a thread of its own; a call that is not done in time has none."""
    answers: dict[Key, Answer] = {}

    def run(key: Key) -> None:
        answers[key] = calls[key]()

    deadline = time.monotonic() + timeout_s
    threads = [threading.Thread(target=run, args=(key,), daemon=True) for key in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(answers)
