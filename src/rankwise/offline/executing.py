"""Runs batches, in this process or in a pool, and gives the results back in order."""

from __future__ import annotations

import json
import traceback
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankwise.errors import RankwiseError, UsageError
from rankwise.files import stamp_of
from rankwise.findings import Finding
from rankwise.offline.parts import Results
from rankwise.offline.row_batches import FILE_COLUMN, Batch, is_arrow, join_columns, taken
from rankwise.offline.values import copied, is_numbers, storable
from rankwise.offline.workspace import PredictError
from rankwise.pool.errors import build_failed

Rows = Sequence[int]  # the rows of a batch that the model gets

_AHEAD = 3  # batches under way per worker: one runs, one waits on the lane, one is being read


@dataclass(frozen=True)
class Recipe:
    """How the model is made, and where it runs."""

    build: Any
    weights: str = ""
    load: str = ""
    stack: bool = True
    device: str = "auto"
    workers: int | str = "auto"
    engine: str = "processes"
    address: str | None = None

    @property
    def program(self) -> str:
        """The path of a `.pt2` program; empty if code builds the model."""
        return self.build if isinstance(self.build, str) and self.build.endswith(".pt2") else ""


_UNREADABLE = "unreadable"


class Executor:
    """Runs batches, in this process or in a pool. A batch that ends its worker is halved until the row to blame is alone."""

    def __init__(self, recipe: Recipe) -> None:
        self._pool: Any
        if recipe.workers == 0:
            self._pool, self.workers, self._ahead = _Here(recipe), 1, 1
        else:
            self._pool = _pool_of(recipe)
            self.workers = len(self._pool.plan.seats)
            self._ahead = _AHEAD * self.workers
        self.patience = 0  # the job ends if so many of the first rows fail alike; 0: never
        self.ran_out = False  # True after a batch was too large for the memory and was halved
        self.peak_bytes = 0  # the most memory that a process with the model has taken
        self.model = ""  # the digest of the model that has run, where its build cannot be recognised
        self._failed: list[dict[str, Any]] = []  # rows that failed before any row has worked
        self._ended: list[dict[str, Any]] = []  # those rows that ended their worker

    def run(self, batches: Iterable[Batch]) -> Iterator[Results]:
        waiting: deque[tuple[Batch, Rows, Any]] = deque()
        source = iter(batches)
        try:
            while True:
                while len(waiting) < self._ahead and (batch := next(source, None)) is not None:
                    waiting.append(self._submit(batch))
                if not waiting:
                    return
                batch, rows, future = waiting.popleft()
                results = _results(batch, rows, self._outcome(batch, rows, future))
                if self.patience:  # then no row has worked yet
                    self._failed = _of_model(self._failed + results.errors)
                    if len(self._failed) >= self.patience and len({error["error"] for error in self._failed}) == 1:
                        raise _first_rows_fail(self._failed)
                yield results
        finally:
            for _, _, future in waiting:
                if future is not None:
                    future.cancel()

    def _submit(self, batch: Batch) -> tuple[Batch, Rows, Any]:
        good, rows = _readable(batch)
        return batch, rows, self._pool.submit("model", good, len(rows), self.patience, batch.dtypes) if rows else None

    def _outcome(self, batch: Batch, rows: Rows, future: Any) -> dict[str, Any]:
        if future is None:
            return _NOTHING
        try:
            outcome: dict[str, Any] = future.result()
        except RankwiseError as error:
            if error.finding.code not in _BY_INPUT:
                raise
            return self._by_halves(batch, rows, error.finding.name, error.finding.summary)
        except Exception as error:  # it made the worker's GPU unusable; other errors of the model are in the outcome
            return self._by_halves(batch, rows, type(error).__name__, str(error))
        if "refused" in outcome:
            raise RankwiseError(Finding.from_dict(json.loads(outcome["refused"])))
        if outcome["gave_up"]:
            if self.patience:
                raise _first_rows_fail(_results(batch, rows, outcome).errors)
            return self._outcome(*self._submit(batch))  # an earlier row has worked meanwhile, so all rows of this batch are tried
        self.patience = 0 if outcome["spans"] else self.patience
        self.ran_out |= outcome["halved"]
        self.peak_bytes = max(self.peak_bytes, outcome["peak_bytes"])
        self.model = outcome["model"]
        return outcome

    def _by_halves(self, batch: Batch, rows: Rows, kind: str, message: str) -> dict[str, Any]:
        """The batch ended its worker, or ran past its limit: run it in halves, to find the row to blame."""
        if len(rows) == 1:
            outcome = {**_NOTHING, "errors": [[0, kind, message]]}
            self._ended += _results(batch, rows, outcome).errors
            if self.patience and len(self._ended) >= _MAX_ENDED:
                raise _first_rows_fail(self._ended)
            return outcome
        whole: dict[str, Any] = {**_NOTHING, "spans": [], "pieces": [], "errors": []}
        good, _ = _readable(batch)
        for start, stop in ((0, len(rows) // 2), (len(rows) // 2, len(rows))):
            columns = {name: column[start:stop] for name, column in good.items()}
            outcome = self._outcome(*self._submit(Batch(batch.first_row + rows[start], columns, stop - start, dtypes=batch.dtypes)))
            whole["spans"] += [[begin + start, end + start] for begin, end in outcome["spans"]]
            whole["pieces"] += outcome["pieces"]
            whole["errors"] += [[row + start, *rest] for row, *rest in outcome["errors"]]
        self.ran_out |= not whole["errors"]  # no single row is to blame: together they were too much
        return whole

    def close(self) -> None:
        self._pool.close(cancel=True, timeout=5)


class _Here:
    """The model in this process, with the few methods of a pool that are used. Nothing is copied, and a crash of the model ends us."""

    def __init__(self, recipe: Recipe) -> None:
        from rankwise.offline.child import best_device, build_runner
        from rankwise.pool.workers.model_building import WithOwnDefaults, built_with_defaults

        try:
            runner, own = built_with_defaults(lambda: build_runner(recipe.build, recipe.weights, recipe.load, recipe.stack))
            self._run = WithOwnDefaults(runner.to(best_device(recipe.device)), own)
        except RankwiseError:
            raise
        except (Exception, SystemExit) as error:  # as a worker of a pool reports it
            raise build_failed("model", "".join(traceback.format_exception(error)), 1, error) from error

    def submit(self, model: str, *inputs: Any) -> Future[Any]:
        from rankwise.pool.workers.runner import GpuUnusable

        done: Future[Any] = Future()
        try:
            done.set_result(self._run(*inputs))
        except GpuUnusable as unusable:
            why = str(unusable.__context__).partition("\n")[0]
            steps = ("give the same command with --workers 1: it goes on where this one was, and only the row that does it fails",)
            raise PredictError("RW833", "after this error nothing more runs on the GPU in this process", why=why, next=steps) from None
        return done

    def close(self, **_: Any) -> None:
        pass


def _pool_of(recipe: Recipe) -> Any:
    from rankwise.pool import Model, Pool

    options: dict[str, Any] = {"build": recipe.build, "weights": recipe.weights, "load": recipe.load, "stack": recipe.stack}
    if recipe.engine == "processes" and (file := recipe.weights or recipe.program):
        options["stamp"] = (file, stamp_of(file))  # a worker may start hours after the first one
    model = Model("rankwise.offline.child:build_in_worker", kwargs=options, device=recipe.device)
    return Pool({"model": model}, workers=recipe.workers, engine=recipe.engine, address=recipe.address)


_NOTHING: dict[str, Any] = {"spans": [], "pieces": [], "errors": [], "halved": False, "gave_up": False, "peak_bytes": 0, "model": ""}
_MAX_ENDED = 4  # so many rows may end their worker before any row has worked: each costs a new worker
_BY_INPUT = {"RW804", "RW806"}  # an input that ends workers, or one that runs past the limit


def _first_rows_fail(errors: list[dict[str, Any]]) -> PredictError:
    """The error if none of the first rows has worked, and all have failed alike."""
    errors = _of_model(errors)
    first = errors[0]
    steps = (
        "see what the model takes, and choose it with --columns a,b (and --separate)",
        "or go on all the same: --max-errors N stops when more than N rows have failed",
    )
    summary = f"the first {len(errors):,} rows all fail alike, and nothing was written"
    return PredictError("RW833", summary, why=f"row {first['row']}: {first['error']}: {first['message'][:300]}", next=steps)


def _of_model(errors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The errors of rows that the model got, if there are any: unreadable rows say nothing about the model."""
    return [error for error in errors if error["error"] != _UNREADABLE] or errors


def _readable(batch: Batch) -> tuple[dict[str, Any], Rows]:
    """The columns without the rows that could not be read, and the numbers of the rows that are left."""
    if not batch.broken:
        return batch.columns, range(batch.length)
    rows = [row for row in range(batch.length) if row not in batch.broken]
    return taken(batch.columns, rows), rows


def _results(batch: Batch, rows: Rows, outcome: dict[str, Any]) -> Results:
    """The results, with row numbers of the input instead of row numbers in the batch."""
    is_whole = len(rows) == batch.length and outcome["spans"] == [[0, batch.length]]
    worked = range(batch.length) if is_whole else [row for begin, end in outcome["spans"] for row in rows[begin:end]]
    pieces = [(piece, len(next(iter(piece.values())))) for piece in outcome["pieces"]]
    outputs = {name: copied(column) for name, column in join_columns(pieces).items()}  # so that results that wait hold no memory of a lane
    check_names([*batch.kept, *outputs])
    carried = (batch.kept if is_whole else taken(batch.kept, worked)) if worked else {}
    kept = {name: _plain(name, column) for name, column in carried.items()}
    errors = [{"row": batch.first_row + row, "error": _UNREADABLE, "message": why} for row, why in batch.broken.items()]
    errors += [{"row": batch.first_row + rows[row], "error": kind, "message": message} for row, kind, message in outcome["errors"]]
    return Results(
        rows=(np.arange(batch.length) if is_whole else np.asarray(worked, np.int64)) + batch.first_row,
        columns={**kept, **outputs},
        errors=sorted(errors, key=lambda error: error["row"]),
        first_row=batch.first_row,
        length=batch.length,
        file_column=next(iter(batch.kept), "") if FILE_COLUMN in batch.columns else "",
        position=batch.position,
    )


def check_names(names: Sequence[str]) -> None:
    """Raise UsageError if a kept column and a column of the model have the same name."""
    if "row" in names:
        why = "the output has one of its own, the number of the row in the input"
        raise UsageError("a column 'row' cannot be kept, nor returned by the model", why=why, next=("give it another name",))
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        why = "columns that are kept and those that the model returns stand side by side"
        raise UsageError(f"two columns of the output would be called {twice[0]!r}", why=why, next=("give one of them another name",))


def _plain(name: str, column: Any) -> Any:
    """A kept column in a form that can be stored."""
    if is_arrow(column) or is_numbers(column):
        return column
    try:
        return [storable(value) for value in column]
    except TypeError as error:
        raise UsageError(f"the column {name!r} cannot be kept", why=str(error)) from error
