"""Watching for the other side for a moment before going to sleep. Exists only for speed.

A process that was just woken runs Python two to three times slower than one that is warm, so for tasks of less than 0.1 ms that follow
each other closely, falling asleep and waking up is most of a round trip. Both sides yield the core to any other process meanwhile.
A kernel that likes to keep two processes that talk to each other on one core leaves them there for good, where one can only watch while
the other waits; so the worker moves to another core once.
"""

from __future__ import annotations

import os
import time

from rankwise.pool.transport.messages import ANSWERED, POSTED, POSTED_FROM, RUNS_ON, StatusPage, current_cpu

BRISK_NS = 100_000  # a task that takes less is quick
_WATCH_ANSWER_NS, _BEGIN_NS = 500_000, 40_000  # how long a caller watches; less where the worker does not even begin
_WATCH_POST_NS = 1_000_000  # how long a worker does
_CLOSE_NS, _STREAK = 3_000_000, 3  # quick tasks with less time between them follow each other closely; after so many a worker moves


def watch_for_answer(page: StatusPage, serial: int, now_ns: int) -> None:
    """In the caller's thread. Not for long where the worker does not begin, or runs on this very core, which it gets when we sleep."""
    words, soon_ns, until_ns = page.words, now_ns + _BEGIN_NS, now_ns + _WATCH_ANSWER_NS
    while words[ANSWERED] != serial:
        now_ns = time.monotonic_ns()
        if now_ns > until_ns or (now_ns > soon_ns and (words[0] != serial or words[RUNS_ON] == current_cpu())):
            return
        os.sched_yield()


class PostWatch:
    """In the worker, after a quick task."""

    def __init__(self, page: StatusPage) -> None:
        self._page = page
        self._streak = self._watched_ns = 0

    def watch(self, last: int) -> None:
        """Until a packet is posted after the one with the serial `last`, where quick tasks follow each other closely."""
        words, now_ns = self._page.words, time.monotonic_ns()
        self._streak = self._streak + 1 if now_ns - self._watched_ns < _CLOSE_NS else 0
        if self._streak:
            is_alone = words[POSTED_FROM] != current_cpu()
            if not is_alone and self._streak >= _STREAK:
                self._streak, is_alone = 1, _move()
            until_ns = now_ns + _WATCH_POST_NS
            while is_alone and words[POSTED] == last and time.monotonic_ns() < until_ns:
                os.sched_yield()
        self._watched_ns = time.monotonic_ns()


def _move() -> bool:
    """To another core; where this process may run stays as it was."""
    allowed = os.sched_getaffinity(0)
    others = allowed - {current_cpu()}
    if others:
        os.sched_setaffinity(0, others)
        os.sched_setaffinity(0, allowed)
    return bool(others)
