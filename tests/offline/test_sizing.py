"""Which batch size is taken, for machines that are made up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import numpy as np
import pytest

from rankwise.offline import sizing
from rankwise.offline.parts import Results
from rankwise.offline.row_batches import Batch, Selection
from rankwise.offline.sizing import UNTRIED, Trial, Trials, find_size, untried_size
from rankwise.offline.source import open_source


def costing(per_batch_s: float, per_row_s: float, most: int = 10**9) -> Callable[[int], Trial | str]:
    """A machine on which a batch costs so much, and more rows than `most` do not fit."""

    def measure(size: int) -> Trial | str:
        seconds = per_batch_s + size * per_row_s
        return Trial(size, size / seconds, seconds) if size <= most else f"{size} are too many for the memory"

    return measure


@pytest.mark.parametrize(
    ("measure", "size", "why"),
    [
        (costing(0.0, 0.001), 1, "4 and more are not clearly faster"),
        (costing(0.001, 0.001), 64, "64 and more are not clearly faster"),
        (costing(0.01, 0.0001), 4096, "4,096: "),
        (costing(0.01, 0.000001), 16384, "16,384: "),
        (costing(0.01, 0.0001, most=100), 64, "256 are too many for the memory"),
        (costing(0.0, 2.0), 1, "a batch of 1 takes 2.0 s"),
        (costing(3.0, 0.001), 1, "a batch of 1 takes 3.0 s"),
        (costing(0.2, 0.004), 256, "a batch of 256 takes 1.2 s"),
        (costing(1.0, 1.0, most=0), 1, "1 are too many"),
    ],
)
def test_the_smallest_size_about_as_fast_as_the_fastest(measure: Callable[[int], Trial | str], size: int, why: str) -> None:
    choice = find_size(measure)

    assert choice.size == size
    assert why in choice.why


def test_one_size_that_met_a_busy_machine_does_not_end_the_search() -> None:
    quick = costing(0.01, 0.0001)

    def measure(size: int) -> Trial | str:
        trial = quick(size)
        return Trial(size, trial.rows_per_s / 10, trial.seconds * 10) if size == 64 else trial

    assert find_size(measure).size == 4096


class Rows:
    """So many rows of eight bytes."""

    def __init__(self, total: int, width: int = 2) -> None:
        self.identity: dict[str, Any] = {}
        self.total: int | None = total
        self._width = width

    def batches(self, size: int, first_row: int = 0, position: int | None = None) -> Iterator[Batch]:
        for start in range(first_row, self.total or 0, size):
            count = min(size, (self.total or 0) - start)
            yield Batch(start, {"x": np.zeros((count, self._width), np.float32)}, count)


class Fake:
    """An executor on which some rows fail, some sizes do not fit, and memory grows by `row_bytes` for each row."""

    def __init__(self, workers: int = 1, failing: tuple[int, ...] = (), most: int = 10**9, row_bytes: int = 0) -> None:
        self.workers, self.ran_out, self.peak_bytes = workers, False, 0
        self.ran: list[int] = []
        self._failing, self._most, self._row_bytes = failing, most, row_bytes

    def run(self, batches: Any) -> Iterator[Results]:
        for batch in batches:
            rows = [row for row in range(batch.length) if row not in batch.broken]
            self.ran.append(len(rows))
            self.ran_out |= len(rows) > self._most
            self.peak_bytes = max(self.peak_bytes, len(rows) * self._row_bytes)
            errors = [
                {"row": row, "error": "E", "message": "bad"} for row in range(batch.length) if row in self._failing or row in batch.broken
            ]
            bad = {error["row"] for error in errors}
            yield Results([row for row in rows if row not in bad], {}, errors, 0, batch.length)

    def close(self) -> None: ...


class Clock:
    """Goes on when somebody works."""

    now_s = 1.0

    def monotonic(self) -> float:
        return self.now_s

    perf_counter = monotonic


def test_what_a_batch_costs_beside_the_model_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is as fast with one row as with many: small batches would take their time in reading and writing."""
    clock = Clock()
    monkeypatch.setattr(sizing, "time", clock)

    class Steady(Fake):
        def run(self, batches: Any) -> Iterator[Results]:
            for results in super().run(batches):
                clock.now_s += results.length * 1e-6
                yield results

    assert find_size(Trials(Rows(100_000), Steady()).measure).size == 16384


def test_rows_that_fail_are_left_out_of_later_trials() -> None:
    executor = Fake(failing=(2, 3))
    trials = Trials(Rows(100), executor)

    assert isinstance(trials.measure(4), Trial)
    assert isinstance(trials.measure(16), Trial)
    assert [rows for rows, _ in groupby(executor.ran)] == [4, 2, 14]


def test_a_bad_first_row_does_not_decide_about_the_size() -> None:
    choice = find_size(Trials(Rows(10_000), Fake(failing=(0, 1))).measure)

    assert choice.size > 1


@pytest.mark.parametrize(
    ("trials", "size", "why"),
    [
        (Trials(Rows(10), Fake()), 16, "the input has 10 rows"),
        (Trials(Rows(0), Fake()), 1, "the input has 0 rows"),
        (Trials(Rows(100), Fake(workers=2)), 16, "too few batches of 100 rows"),
        (Trials(Rows(100), Fake(failing=tuple(range(100)))), 64, "all fail"),
        (Trials(Rows(100), Fake(most=3)), 4, "4 are too many for the memory"),
        (Trials(Rows(100, width=2 << 20), Fake()), 16, "16 rows are more than 64 MB"),
    ],
)
def test_what_is_too_large_is_said(trials: Trials, size: int, why: str) -> None:
    found = trials.measure(size)

    assert isinstance(found, str) and why in found


def test_a_size_that_might_not_fit_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "memory_bytes", lambda: 4 << 30)
    executor = Fake(row_bytes=20 << 20)
    trials = Trials(Rows(10_000), executor)
    for size in (1, 4, 16):
        assert isinstance(trials.measure(size), Trial)

    found = trials.measure(64)

    assert isinstance(found, str) and "64 might take 1,200 MB" in found
    assert max(executor.ran) == 16


def test_trying_takes_a_few_seconds_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Trials(Rows(10_000), Fake())
    monkeypatch.setattr(sizing, "_TRIAL_S", -1.0)

    assert "of trying are enough" in str(trials.measure(4))


@pytest.mark.parametrize(("nbytes", "size"), [(8, UNTRIED), (4 << 20, 16), (65 << 20, 1)])
def test_of_large_rows_fewer_are_taken_where_nothing_can_be_tried(nbytes: int, size: int) -> None:
    assert untried_size(open_source((np.zeros(nbytes, np.uint8) for _ in range(3)), Selection())) == size


def test_nothing_is_no_reason_to_take_fewer() -> None:
    assert untried_size(open_source(iter(()), Selection())) == UNTRIED
