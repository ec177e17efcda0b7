"""Checks now and then, while a job runs, whether rows depend on each other: the first rows of an input may not show it."""

from __future__ import annotations

from collections.abc import Iterator

from rankwise.offline.executing import Executor
from rankwise.offline.format import Source
from rankwise.offline.parts import Results
from rankwise.offline.row_batches import Batch, taken
from rankwise.offline.row_independence import VARIES, find_dependence
from rankwise.offline.workspace import PredictError

_ROWS = 8


class LaterRows:
    """Looks at the second batch of the input, the third, the fifth, the ninth and so on; also at the first, if nothing was tried before. If
    rows depend on each other, the job ends: another batch size would have given other rows."""

    def __init__(self, executor: Executor, size: int, from_first: bool) -> None:
        self._executor, self._size, self._from_first = executor, size, from_first
        self._waiting: dict[int, Batch] = {}  # by the number of their first row
        self._is_over = size < 2

    def note(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            number = batch.first_row // self._size
            if not self._is_over and number & (number - 1) == 0 and (number or self._from_first):
                self._waiting[batch.first_row] = _some_rows(batch)
            yield batch

    def look_at(self, results: Results) -> None:
        batch = self._waiting.pop(results.first_row, None)
        if batch is None or self._is_over or results.errors:
            return
        reason = find_dependence(_Single(batch), self._executor, self._size)
        self._is_over = reason == VARIES
        if not reason or reason == VARIES:
            return
        said = f"rows depend on each other: among rows {results.first_row:,} to {results.first_row + results.length - 1:,}, {reason}"
        steps = ("--batch 1 --restart runs them one by one", f"--batch {self._size} --restart, if they are meant to be seen together")
        raise PredictError("RW811", said, next=steps)


class _Single(Source):
    """A few rows as an input of their own."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def batches(self, size: int, first_row: int = 0, position: int | None = None) -> Iterator[Batch]:
        yield self._batch


def _some_rows(batch: Batch) -> Batch:
    """Rows from all over the batch, only a few, because they are kept until the batch's results are there."""
    rows = [row for row in range(batch.length) if row not in batch.broken]
    chosen = rows[:: -(-len(rows) // _ROWS)] if rows else []
    return Batch(batch.first_row, taken(batch.columns, chosen), len(chosen), dtypes=batch.dtypes)
