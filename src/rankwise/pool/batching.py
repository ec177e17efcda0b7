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
    """The usual time between two rows."""

    def __init__(self) -> None:
        self._last: float | None = None
        self.gap_s: float | None = None

    def add(self, now: float, rows: int) -> None:
        if self._last is not None:
            gap = (now - self._last) / max(1, rows)
            self.gap_s = gap if self.gap_s is None else 0.9 * self.gap_s + 0.1 * min(gap, 1.0)
        self._last = now


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
