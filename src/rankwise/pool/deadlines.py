"""When tasks are to be done at the latest. Holds no task longer than it lasts, nor much that is over."""

from __future__ import annotations

import heapq
import itertools
import weakref

from rankwise.pool.tasks import Task

_FEW = 64  # entries that are not worth looking through


class Deadlines:
    def __init__(self) -> None:
        # A task knows its result, which is not to be kept for as long as the task was allowed to take.
        self._heap: list[tuple[float, int, weakref.ref[Task]]] = []
        self._ticket = itertools.count()
        self._look_at = _FEW

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, deadline: float, task: Task) -> None:
        heapq.heappush(self._heap, (deadline, next(self._ticket), weakref.ref(task)))
        if len(self._heap) >= self._look_at:
            self._heap = [entry for entry in self._heap if _is_open(entry[2])]
            heapq.heapify(self._heap)
            self._look_at = _FEW + 2 * len(self._heap)

    def next(self) -> float | None:
        """The next that still matters."""
        while self._heap and not _is_open(self._heap[0][2]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def passed(self, now: float) -> list[Task]:
        tasks = []
        while self._heap and self._heap[0][0] <= now:
            task = heapq.heappop(self._heap)[2]()
            if task is not None:
                tasks.append(task)
        return tasks


def _is_open(reference: weakref.ref[Task]) -> bool:
    task = reference()
    return task is not None and not task.is_over
