"""`rankwise.predict`: offline inference over any input, in order, exactly once, resumable."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankwise.errors import UsageError
from rankwise.predict.batches import Batch, Selection
from rankwise.predict.executing import Executor, Recipe, start
from rankwise.predict.parts import Results, join
from rankwise.predict.sinks.sink import write_errors, write_output, writer_for
from rankwise.predict.sizing import UNTRIED, Choice, Trials, find_size
from rankwise.predict.sources.source import Source, batches_of, file_identity, open_source
from rankwise.predict.workspace import PredictError, Workspace, cannot_write, folder_of, read_marker, write_marker

_PART_S = 2.0  # what a crash may cost, in seconds of work
_PART_BYTES = 16 << 20

OnProgress = Callable[[int, int, int | None], None]  # rows done, rows failed, rows in all (if known)


@dataclass(frozen=True)
class Options:
    """How a job is run; what does not belong to what is computed."""

    workers: int | str = "auto"
    batch: int | str = "auto"
    max_errors: int | None = None
    restart: bool = False
    overwrite: bool = False
    errors: str | os.PathLike[str] | None = None


@dataclass(frozen=True)
class Predicted:
    """What came of a job."""

    output: str
    rows: int
    failed: int
    resumed_rows: int  # of an earlier, interrupted run
    batch: int
    seconds: float
    errors: str | None = None
    batch_why: str = ""  # how the batch size was found, where it was left to us


def predict(
    build: Any,
    input: Any,
    output: str | os.PathLike[str],
    *,
    weights: str | os.PathLike[str] | None = None,
    columns: Sequence[str] = (),
    keep: Sequence[str] = (),
    load: str = "",
    stack: bool = True,
    device: str = "auto",
    options: Options | None = None,
    on_progress: OnProgress | None = None,
    **more: Any,
) -> Predicted:
    """Run the model over `input` (a path, or a dataset) and write `output`; the same call again goes on where it was interrupted.

    `build` is an import path ("my_models:build"), a callable that makes the model, or a `.pt2` program. Keywords beyond those named
    are those of `Options`: `workers`, `batch`, `max_errors`, `restart`, `overwrite`, `errors`.
    """
    options = options or Options(**more)
    target = Path(output)
    selection = Selection(tuple(columns), tuple(keep))
    _check(target, options, weights)
    _check_kinds(target, keep, device)
    if isinstance(input, (str, os.PathLike)):
        _check_apart(Path(input), target, options)
    source = open_source(input, selection)
    recipe = Recipe(build, str(weights or ""), load, stack, device, options.workers)
    identity = _identity(recipe, source, selection, options)
    marker = read_marker(target)
    if _is_done(target, marker, identity):
        if folder_of(target).exists():  # killed between the last rename and the cleaning up
            Workspace(target, identity).remove()
        return Predicted(**marker["predicted"])
    if target.exists() and not folder_of(target).exists() and not options.overwrite:
        raise UsageError(f"{target} is already there", next=("give another --output, or --overwrite",))
    workspace = Workspace(target, identity, options.restart)
    try:
        return _Job(source, recipe, options, workspace, on_progress).run(identity)
    except BaseException:
        if not workspace.done_rows:
            workspace.remove()
        raise
    finally:
        workspace.close()


class _Job:
    """One run of a job, the first or a later one."""

    def __init__(self, source: Source, recipe: Recipe, options: Options, workspace: Workspace, on_progress: OnProgress | None) -> None:
        self._source, self._recipe, self._options, self._space = source, recipe, options, workspace
        self._on_progress = on_progress or (lambda done, failed, total: None)
        self._positions: dict[int, int | None] = {}

    def run(self, identity: dict[str, Any]) -> Predicted:
        started = time.monotonic()
        resumed = self._space.done_rows
        batch = int((self._space.plan or {}).get("batch", 0))
        if not self._space.is_complete:
            executor = start(self._recipe)
            try:
                batch = batch or self._find_batch(executor)
                self._compute(executor, batch)
            finally:
                executor.close()
            self._space.finish()
        errors = self._write()
        seconds = round(time.monotonic() - started, 3)
        why = str((self._space.plan or {}).get("why", ""))
        done = Predicted(str(self._space.output), self._space.done_rows, self._space.failed_rows, resumed, batch, seconds, errors, why)
        size = self._space.output.stat().st_size
        write_marker(self._space.output, {"job": identity, "bytes": size, "predicted": {**vars(done)}})
        self._space.remove()
        return done

    def _find_batch(self, executor: Executor) -> int:
        """The size that was asked for, or is found by trying; written down, for every run of this job has to cut at the same rows."""
        asked = self._options.batch
        if isinstance(asked, int):
            choice = Choice(asked, "")
        elif getattr(self._source, "is_one_shot", False):
            choice = Choice(UNTRIED, "nothing was tried: this input can be read only once")
        else:
            choice = find_size(Trials(self._source, executor).measure)
        self._space.decide({"batch": choice.size, "why": choice.why})
        return choice.size

    def _compute(self, executor: Executor, batch: int) -> None:
        """From the first row that is not done to the last, a part every few seconds."""
        held: list[Results] = []
        flushed, nbytes, done, failed = time.monotonic(), 0, self._space.done_rows, self._space.failed_rows
        for results in executor.run(self._noted(batches_of(self._source, batch, done, self._space.position))):
            held.append(results)
            done, failed = done + results.length, failed + len(results.errors)
            nbytes += sum(getattr(column, "nbytes", 64 * results.length) for column in results.columns.values())
            self._on_progress(done, failed, self._source.total)
            too_many = self._options.max_errors is not None and failed > self._options.max_errors
            if too_many or nbytes > _PART_BYTES or time.monotonic() - flushed > _PART_S:
                self._flush(held)
                held, flushed, nbytes = [], time.monotonic(), 0
            if too_many:
                raise self._too_many(results, failed)
        if held:
            self._flush(held)

    def _flush(self, held: list[Results]) -> None:
        whole = join(held)
        self._space.add(whole, self._positions.pop(whole.first_row + whole.length, None))

    def _noted(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            if batch.position is not None:
                self._positions[batch.first_row + batch.length] = batch.position
            yield batch

    def _too_many(self, last: Results, failed: int) -> PredictError:
        examples = "\n".join(f"row {error['row']}: {error['error']}: {error['message'][:200]}" for error in last.errors[:5])
        summary = f"{failed} rows failed, which is more than --max-errors {self._options.max_errors}"
        return PredictError("RW833", summary, why=examples, next=("what is done is kept: raise the limit and give the same command again",))

    def _write(self) -> str | None:
        output = self._space.output
        path = self._errors_path()
        try:
            self._space.begin_writing(path.name)
            failed = write_errors(path, self._space.results()) if self._space.failed_rows else 0
            write_output(output, self._space.results, self._space.done_rows)
        except OSError as error:
            raise cannot_write(output, error) from error
        return str(path) if failed else None

    def _errors_path(self) -> Path:
        """errors.jsonl beside the output, unless that lists the rows of another job; decided once for all runs of this one."""
        output = self._space.output
        if self._options.errors:
            return Path(self._options.errors)
        if self._space.errors_name is not None:
            return output.with_name(self._space.errors_name)
        usual = output.with_name("errors.jsonl")
        is_ours = read_marker(output).get("predicted", {}).get("errors") == str(usual)
        return output.with_name(f"{output.name}.errors.jsonl") if usual.exists() and not is_ours else usual


def _check(target: Path, options: Options, weights: Any) -> None:
    """What can be seen to be wrong before anything starts."""
    writer_for(target)
    if not target.parent.is_dir():
        raise UsageError(f"there is no folder {target.parent}", next=(f"mkdir -p {target.parent}",))
    if options.batch != "auto" and (not isinstance(options.batch, int) or options.batch < 1):
        raise UsageError(f'batch must be "auto" or a number of rows, not {options.batch!r}')
    if options.workers != "auto" and (not isinstance(options.workers, int) or options.workers < 0):
        raise UsageError(f'workers must be "auto" or a number, not {options.workers!r}')
    if options.errors and not Path(options.errors).parent.is_dir():
        raise UsageError(f"there is no folder {Path(options.errors).parent} for the list of failed rows", next=("make it first",))
    if weights and not Path(weights).exists():
        raise UsageError(f"there are no weights at {weights}", next=("check the path",))


def _check_kinds(target: Path, keep: Sequence[str], device: str) -> None:
    if keep and target.suffix.lower() == ".npy":
        raise UsageError(f".npy holds one array, so {keep[0]!r} cannot be kept in {target}", next=("write .parquet, .jsonl or .csv",))
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise UsageError(f"there is no device {device!r}", next=("auto, cpu, cuda or cuda:0",))


def _check_apart(source: Path, target: Path, options: Options) -> None:
    """What is written must not replace what is read."""
    given = source.resolve()
    for path in [target, *([options.errors] if options.errors else [])]:
        written = Path(path).resolve()
        if written == given or written in given.parents:
            raise UsageError(f"{path} is the input, or holds it, and would be replaced", next=("give another --output",))


def _identity(recipe: Recipe, source: Source, selection: Selection, options: Options) -> dict[str, Any]:
    """What decides about the results. Another command, another input or other weights are another job."""
    build = recipe.build
    if not isinstance(build, str):
        build = f"{getattr(build, '__module__', '')}:{getattr(build, '__qualname__', type(build).__qualname__)}"
    weights = Path(recipe.weights)
    return {
        "build": file_identity(Path(build)) if build.endswith(".pt2") and Path(build).is_file() else build,
        "weights": None if not recipe.weights else file_identity(weights) if weights.is_file() else str(weights.resolve()),
        "input": source.identity,
        "columns": list(selection.columns),
        "keep": list(selection.keep),
        "load": recipe.load,
        "stack": recipe.stack,
        "batch": options.batch,
    }


def _is_done(target: Path, marker: dict[str, Any], identity: dict[str, Any]) -> bool:
    return target.exists() and marker.get("job") == identity and marker.get("bytes") == target.stat().st_size
