"""Finds how many rows to run at once by trying larger and larger batches of the first rows, until more rows do not help."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from rankwise.offline.executing import Executor
from rankwise.offline.format import Source
from rankwise.offline.row_batches import Batch
from rankwise.offline.source import batches_of
from rankwise.offline.values import nbytes_of
from rankwise.pool.backend import memory_bytes

SIZES = (1, 4, 16, 64, 256, 1024, 4096, 16384)
UNTRIED = 256  # the size if nothing can be tried
_CLEARLY = 1.1  # a larger batch has to be this much faster for a still larger one to be tried
_AS_GOOD = 0.95  # of the best speed: then the smaller batch is taken, which needs less memory and loses less when it fails
_LONG_S = 1.0  # a batch that takes longer is large enough
_TRIAL_S = 5.0  # for all trials; a trial that is running is not cut short
_REPEATS, _LEAST_S, _MOST_S = 3, 0.01, 0.3  # each size is tried at least so often and so long, unless that takes too long
_QUICK_S = 0.05  # trials go on while a batch takes less: a size may have been slow only because the machine was busy
_BATCH_S = 0.0005  # time for reading, storing and writing a batch of ten columns, in addition to the model's
_INPUT_BYTES = 64 << 20
_MANY = 64  # of the first rows: if all of these fail, more are not tried
_SHARE = 4  # at least so many batches per worker, so that all workers end together; trials may take one part in so many of the memory


@dataclass(frozen=True)
class Trial:
    """One size that was tried: its speed, and how long a batch took."""

    size: int
    rows_per_s: float
    seconds: float


@dataclass(frozen=True)
class BatchSize:
    size: int
    why: str


def find_size(measure: Callable[[int], Trial | str]) -> BatchSize:
    """The smallest size that is about as fast as the fastest. `measure` tries one, or says why it is too large."""
    trials: list[Trial] = []
    in_vain: list[int] = []  # sizes in a row that were not faster
    ended = ""
    for size in SIZES:
        trial = measure(size)
        if isinstance(trial, str):
            ended = trial
            break
        best = max((before.rows_per_s for before in trials), default=0.0)
        trials.append(trial)
        if not trial.rows_per_s:
            continue  # the first rows fail, and say nothing about speed
        if trial.rows_per_s >= _CLEARLY * best:
            in_vain.clear()
            if trial.seconds > _LONG_S:
                ended = f"a batch of {size:,} takes {trial.seconds:.1f} s"
                break
        else:
            in_vain.append(size)
            if len(in_vain) > 1 and trial.seconds > _QUICK_S:
                ended = f"{in_vain[0]:,} and more are not clearly faster"
                break
    best = max((trial.rows_per_s for trial in trials), default=0.0)
    if not best:
        return BatchSize(trials[-1].size if trials else 1, ended)
    size = next(trial.size for trial in trials if trial.rows_per_s >= _AS_GOOD * best)
    tried = ", ".join(f"{trial.size:,}: {_rounded(trial.rows_per_s)}" for trial in trials if trial.rows_per_s)
    return BatchSize(size, f"tried {tried} rows/s" + (f"; {ended}" if ended else ""))


def untried_size(source: Source) -> int:
    """For an input that nothing can be tried with; of large rows fewer, for several batches are held at a time."""
    first = next(batches_of(source, 1), None)
    nbytes = sum(map(nbytes_of, first.columns.values())) if first is not None else 0
    return max(1, min(UNTRIED, _INPUT_BYTES // max(1, nbytes)))


class Trials:
    """Runs the first rows of an input in batches of growing size. The results are thrown away: the job runs these rows again."""

    def __init__(self, source: Source, executor: Executor) -> None:
        self._source, self._executor = source, executor
        self._failing: dict[int, str] = {}  # failed rows, left out of the next trial: a halved batch says nothing about speed
        self._started: float | None = None  # when the model was ready
        self._peak_at_first = 0

    def measure(self, size: int) -> Trial | str:
        total, workers = self._source.total, self._executor.workers
        if total is not None and workers > 1 and size > max(1, total // (_SHARE * workers)):
            return f"{size:,} would leave {workers} workers too few batches of {total:,} rows"
        self._started = self._started or time.monotonic()
        if (reason := self._too_much(size, self._started)) is not None:
            return reason
        batch = next(batches_of(self._source, size), None)
        if batch is None or batch.length < size:
            return f"the input has {batch.length if batch else 0} rows"
        if sum(map(nbytes_of, batch.columns.values())) > _INPUT_BYTES:
            return f"{size:,} rows are more than {_INPUT_BYTES >> 20} MB"
        if size == 1:
            self._run(batch)  # builds the model, and does whatever else is done once
            self._started, self._peak_at_first = time.monotonic(), self._executor.peak_bytes
        return self._timed(batch)

    def _timed(self, batch: Batch) -> Trial | str:
        self._executor.ran_out = False
        best = 0.0
        spent, repeats = 0.0, 0
        while spent < (_MOST_S if repeats < _REPEATS else _LEAST_S):
            failing = len(self._failing)
            worked, seconds = self._run(batch)
            if self._executor.ran_out:
                return f"{batch.length:,} are too many for the memory"
            if not worked:
                all_fail = f"of the first {batch.length:,} rows all fail"
                return all_fail if batch.length >= _MANY else Trial(batch.length, 0.0, seconds)
            if len(self._failing) == failing:
                best = max(best, worked / (seconds + _BATCH_S))
                spent, repeats = spent + seconds, repeats + 1
        return Trial(batch.length, best, batch.length / best)

    def _run(self, batch: Batch) -> tuple[int, float]:
        """The number of rows that worked, and the seconds."""
        known = {row: why for row, why in self._failing.items() if row < batch.length}
        worked = 0
        started = time.perf_counter()
        for results in self._executor.run([replace(batch, broken={**batch.broken, **known})]):
            worked += len(results.rows)
            self._failing.update({error["row"]: error["message"] for error in results.errors if error["row"] not in batch.broken})
        return worked, max(1e-9, time.perf_counter() - started)

    def _too_much(self, size: int, started: float) -> str | None:
        """Why not to try this size. Asked before, because the kernel ends processes when memory runs out, not always the right ones."""
        grown = self._executor.peak_bytes - self._peak_at_first if size > SIZES[1] else 0
        if grown * (SIZES[1] // SIZES[0]) * self._executor.workers > memory_bytes() // _SHARE:
            return f"{size:,} might take {4 * grown >> 20:,} MB for each of {self._executor.workers} workers"
        if time.monotonic() - started > _TRIAL_S:
            return f"{_TRIAL_S:g} s of trying are enough"
        return None


def _rounded(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
