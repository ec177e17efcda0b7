"""What a batch costs, learned from those that ran: a seconds per row, b per batch; and whether waiting for more rows pays."""

from __future__ import annotations

from dataclasses import dataclass

_MEMORY = 0.97  # weight of what was known before; about the last thirty batches count


class CostModel:
    """Least squares of seconds = a·rows + b with fading memory; neither a nor b is ever negative."""

    def __init__(self) -> None:
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, rows: int, seconds: float) -> None:
        self._n = self._n * _MEMORY + 1
        self._x = self._x * _MEMORY + rows
        self._y = self._y * _MEMORY + seconds
        self._xx = self._xx * _MEMORY + rows * rows
        self._xy = self._xy * _MEMORY + rows * seconds

    def fit(self) -> tuple[float, float] | None:
        """(a, b), or None while nothing ran."""
        if not self._n:
            return None
        mean_x, mean_y = self._x / self._n, self._y / self._n
        spread = self._xx / self._n - mean_x * mean_x
        if spread < 1e-9:  # one size only: where its cost comes from cannot be told, so half is laid to each
            return mean_y / (2 * max(mean_x, 1.0)), mean_y / 2
        a = max(0.0, (self._xy / self._n - mean_x * mean_y) / spread)
        b = mean_y - a * mean_x
        if b < 0:
            a, b = mean_y / mean_x, 0.0
        return a, b

    def seconds(self, rows: int) -> float | None:
        fit = self.fit()
        return None if fit is None else fit[0] * rows + fit[1]


class Arrivals:
    """The usual time between two rows. Rows are only counted when they come: whoever decides about a batch works it out."""

    def __init__(self) -> None:
        self.rows = 0  # since the last look
        self._looked: float | None = None
        self._gap_s: float | None = None

    def gap_s(self, now: float) -> float | None:
        if self.rows:
            if self._looked is not None:
                gap_s = min(1.0, (now - self._looked) / self.rows)
                before = 0.9**self.rows
                self._gap_s = gap_s if self._gap_s is None else before * self._gap_s + (1 - before) * gap_s
            self._looked, self.rows = now, 0
        return self._gap_s


@dataclass(frozen=True)
class Forming:
    """A batch that could start now: its rows and how many it may have, when its oldest row came, and the first deadline in it."""

    rows: int
    max_rows: int
    oldest: float
    deadline: float | None = None


def wait_until(batch: Forming, fit: tuple[float, float] | None, gap_s: float | None, max_delay_s: float) -> float:
    """When it should start at the latest: at once, where waiting does not pay.

    One more row saves its own fixed cost b, and costs each of the rows that wait the time until it comes.
    """
    if batch.rows >= batch.max_rows or not max_delay_s or fit is None or gap_s is None:
        return batch.oldest
    a, b = fit
    if batch.rows * gap_s >= b:
        return batch.oldest
    latest = batch.oldest + max_delay_s
    if batch.deadline is not None:
        latest = min(latest, batch.deadline - 1.5 * (a * (batch.rows + 1) + b))
    return max(batch.oldest, latest)
