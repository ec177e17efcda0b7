"""`rankwise.predict`: offline inference over any input, in order, exactly once, resumable."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from rankwise.errors import UsageError
from rankwise.offline.addresses import path_or_address
from rankwise.offline.checking import (
    Options,
    check_apart,
    check_columns,
    check_is_path,
    check_options,
    check_output,
    check_recipe,
    check_replaceable,
)
from rankwise.offline.executing import Executor, Recipe
from rankwise.offline.format import LateFraction, Source
from rankwise.offline.identity import UNKNOWN, first_rows_digest, identity_of, is_certain, was_rewritten
from rankwise.offline.later_rows import LaterRows
from rankwise.offline.lazy import check_arrow
from rankwise.offline.output import check_fits, write_errors, write_output
from rankwise.offline.parts import NextPart, Results, form_of
from rankwise.offline.record_log import JournalRemoved
from rankwise.offline.remote_output import RemoteOutput
from rankwise.offline.row_batches import Selection
from rankwise.offline.row_independence import VARIES, find_dependence
from rankwise.offline.sizing import BatchSize, Trials, find_size, untried_size
from rankwise.offline.source import batches_of, open_source
from rankwise.offline.workspace import (
    PredictError,
    Workspace,
    another_job,
    folder_of,
    holds_what_was_written,
    is_placed,
    is_same,
    names_in,
    read_marker,
    write_marker,
    writing,
)
from rankwise.pool.api.model import is_imported_by_worker, is_importing_script
from rankwise.pool.errors import missing_main_guard

log = logging.getLogger("rankwise.predict")

_PART_S = 2.0  # seconds of work that a crash may cost
_PART_BYTES = 16 << 20
_FORMS = 64  # different forms of results that are tried on the output
_ALIKE = 32  # so many first rows that fail alike stop a job that has no limit of failed rows

# Rows done, rows failed, and all rows: None if unknown, an estimate of three digits if a file's rows are not counted.
OnProgress = Callable[[int, int, int | None], None]


@dataclass(frozen=True)
class Predicted:
    """The result of a job."""

    output: str
    rows: int
    failed: int
    resumed_rows: int  # rows that an earlier run had done: all of them, if there was nothing left to do
    batch: int
    seconds: float
    errors: str | None = None
    batch_why: str = ""  # how the batch size was found, if it was not given


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
    are those of `Options`: `workers`, `batch`, `max_errors`, `restart`, `overwrite`, `errors`, `engine`, `address`.
    """
    check_arrow()
    options = options or Options(**more)
    if options.workers != 0 and (is_importing_script() or is_imported_by_worker()):
        raise missing_main_guard()
    build = os.fspath(build) if isinstance(build, os.PathLike) else build
    check_recipe(build, load)
    check_is_path(weights=weights, errors=options.errors)
    target = path_or_address(output)
    check_columns(columns=columns, keep=keep)
    selection = Selection(tuple(map(str, columns)), tuple(map(str, keep)))
    device = str(device)
    check_options(options, device)
    check_output(target, keep, options)
    check_apart(target, options.errors, {"input": input, "weights": weights, "program": build})
    if weights is not None and not Path(weights).exists():
        raise UsageError(f"there are no weights at {weights}", next=("check the path",))
    source = open_source(input, selection)
    pinned = str(Path(weights).resolve()) if weights else ""  # `last.pt` may point to another file by the time the last worker starts
    recipe = Recipe(build, pinned, load or "", bool(stack), device, options.workers, engine=options.engine, address=options.address)
    work = _Work(source, recipe, identity_of(recipe, source, selection, options.batch), options, on_progress)
    while True:
        try:
            return _run(work, target) if isinstance(target, Path) else _run_to_address(work, RemoteOutput(target))
        except JournalRemoved:  # another process was at this job, and has just finished it
            continue


@dataclass(frozen=True)
class _Work:
    """A job, before it is known where its output goes."""

    source: Source
    recipe: Recipe
    identity: dict[str, Any]
    options: Options
    on_progress: OnProgress | None

    @property
    def may_be_done(self) -> bool:
        """Whether an output of the same identity, if there is one, is the result that is wanted."""
        return is_certain(self.identity, self.source) and not (self.options.overwrite or self.options.restart)


def _found(done: dict[str, Any]) -> Predicted:
    """The result of an earlier run, where nothing is left to do: it says that nothing ran, or an edited model would seem to have run."""
    return Predicted(**{**done, "resumed_rows": done["rows"]})


def _run_to_address(work: _Work, remote: RemoteOutput) -> Predicted:
    options = work.options
    with remote.held():
        if work.may_be_done and (done := remote.finished(work.identity)):
            return _found(done)
        remote.check_replaceable(work.identity, options.overwrite, options.restart)
        remote.fetch(anew=options.restart)
        here = replace(work, options=replace(options, overwrite=False, restart=False, errors=options.errors or remote.errors))
        try:
            done = asdict(_run(here, remote.output, remote))
        except BaseException:
            remote.tidy()
            raise
        return Predicted(**remote.place(work.identity, done))


def _run(work: _Work, target: Path, remote: RemoteOutput | None = None) -> Predicted:
    identity, options = work.identity, work.options
    marker = read_marker(target)
    is_ours = target.exists() and is_same(marker.get("job"), identity) and holds_what_was_written(target, marker)
    if is_ours and work.may_be_done:
        if folder_of(target).exists():  # the run was killed between the last rename and the cleaning up
            Workspace(target, identity).remove()
        return _found(marker["predicted"])
    if target.exists() and not is_placed(target, identity):
        if not is_same(read_marker(target), marker):  # another process has put it there, and finished, meanwhile
            raise JournalRemoved
        check_replaceable(target, options, is_ours)
    shown, send = (remote.address, remote.send) if remote is not None else (None, None)
    workspace = Workspace(target, identity, options.restart, shown, send)
    try:
        if not is_same(read_marker(target), marker):  # another process wrote it while we waited for that process
            raise JournalRemoved
        return _Job(work, workspace).run()
    except BaseException:
        if not workspace.done_rows:
            workspace.remove()
        raise
    finally:
        workspace.close()


class _Job:
    """One run of a job: the first one, or one that resumes it."""

    def __init__(self, work: _Work, workspace: Workspace) -> None:
        self._work, self._source, self._options, self._space = work, work.source, work.options, workspace
        self._most_failed = math.inf if work.options.max_errors is None else work.options.max_errors
        self._is_checked = False  # whether the model is known for that of the earlier run

    def run(self) -> Predicted:
        started = time.monotonic()
        resumed = self._space.done_rows
        self._source.take_for_fractional(self._space.noted("fractional") or ())
        self._check_errors(self._space.failed_rows)
        plan = self._space.noted("plan")
        if resumed and plan["first_rows"] not in (None, self._first_rows()):
            raise another_job(self._space.output, "the first rows of the input are not those of the earlier run")
        if self._space.noted("end") is None:
            executor = Executor(self._work.recipe)
            try:
                while not self._is_computed(executor):
                    resumed = 0
            finally:
                executor.close()
            plan = self._space.noted("plan")
            self._space.note(end=self._space.done_rows)
        errors = self._write()
        seconds = round(time.monotonic() - started, 3)
        output, rows, failed = self._space.output, self._space.done_rows, self._space.failed_rows
        done = Predicted(str(output), rows, failed, resumed, plan["batch"], seconds, errors, plan["why"])
        facts = {"job": self._work.identity, "bytes": output.stat().st_size, "names": names_in(output), "predicted": {**vars(done)}}
        write_marker(output, facts)
        self._space.remove()
        return done

    def _is_computed(self, executor: Executor) -> bool:
        """False if a column turned out to have another type than the rows were run with: then all rows have to run again."""
        executor.patience = 0
        try:
            plan = self._space.noted("plan") or self._find_plan(executor)
            executor.patience = 0 if self._space.done_rows or self._options.max_errors is not None else _ALIKE
            self._compute(executor, plan["batch"])
        except LateFraction as late:
            done, known = self._space.done_rows, self._space.noted("fractional") or []
            if done:
                text = "column %r has its first fraction in row %d or later: begun again, with all its numbers as floating point"
                log.warning(text, late.name, late.first_row)
            self._space.begin_again(fractional=[*known, late.name])
            self._is_checked = False
            self._source.take_for_fractional([late.name])
            return False
        return True

    def _find_plan(self, executor: Executor) -> dict[str, Any]:
        """The size that was given, or one found by trying. It is noted, because every run of this job has to cut at the same rows."""
        asked = self._options.batch
        if isinstance(asked, int):
            choice = BatchSize(asked, "")
        elif self._source.is_one_shot:
            why = "nothing was tried: an input without len() and [i] may be one that can be read only once"
            choice = BatchSize(untried_size(self._source), why)
        else:
            choice = self._with_rows_apart(executor, find_size(Trials(self._source, executor).measure))
        plan = {"batch": choice.size, "why": choice.why, "first_rows": self._first_rows()}
        self._space.note(plan=plan)
        return plan

    def _with_rows_apart(self, executor: Executor, choice: BatchSize) -> BatchSize:
        """If rows depend on each other, one by one: how many run together must not depend on the speed of a trial."""
        reason = find_dependence(self._source, executor, choice.size)
        if not reason or reason == VARIES:
            return replace(choice, why=f"{choice.why}; {reason}") if reason else choice
        log.warning("RW811 rows depend on each other, so they run one by one: %s; rankwise explain RW811", reason)
        return BatchSize(1, f"rows depend on each other: {reason}")

    def _first_rows(self) -> str | None:
        """A hash of the first rows, for an input that is not recognised by path, size and time; None for others."""
        return None if self._source.is_recognisable else first_rows_digest(self._source)

    def _compute(self, executor: Executor, batch: int) -> None:
        """Compute from the first row that is not done to the last row; write a part every few seconds."""
        part = NextPart()
        first: Results | None = None  # the first results with rows that worked
        forms: list[Any] = []  # forms of results so far
        later = LaterRows(executor, 1 if isinstance(self._options.batch, int) else batch, self._source.is_one_shot)
        flushed, done, failed = time.monotonic(), self._space.done_rows, self._space.failed_rows
        for results in executor.run(later.note(batches_of(self._source, batch, done, self._space.position))):
            later.look_at(results)
            self._check_model(executor.model)
            part.add(results)
            if len(results.rows) and len(forms) < _FORMS and (form := form_of(results)) not in forms:
                forms.append(form)
                with writing(self._space.output):  # fail now, not at the end, if the output cannot hold this
                    check_fits(self._space.output, *([results] if first is None else [first, results.cut(0, 1)]))
                first = first or results.cut(0, 1)
            done, failed = done + results.length, failed + len(results.errors)
            if self._work.on_progress is not None:
                self._work.on_progress(done, failed, self._total(done, results.position))
            if failed > self._most_failed or part.nbytes > _PART_BYTES or time.monotonic() - flushed > _PART_S:
                self._flush(part)
                part, flushed = NextPart(), time.monotonic()
            self._check_errors(failed)
        if part.results:
            self._flush(part)

    def _check_model(self, digest: str) -> None:
        """Stop if the model is not the one that began the job, as far as its parameters tell."""
        if self._is_checked or not digest or self._work.identity["build"] != UNKNOWN:
            return
        self._is_checked = True
        known = self._space.noted("model")
        if known is None:
            self._space.note(model=digest)
        elif known != digest:
            why = "the model has other parameters than in the earlier run: it was trained since, or what builds it draws random ones"
            raise another_job(self._space.output, why)

    def _flush(self, part: NextPart) -> None:
        if was_rewritten(self._source.identity):
            summary = f"{self._source.identity['path']} was changed while it was read, so its rows may be of two versions"
            raise PredictError("RW831", summary, next=("--restart, when nobody writes to it any more",))
        self._space.add(part, part.results[-1].position)

    def _total(self, done: int, position: int | None) -> int | None:
        """The number of rows; estimated from the bytes read so far, if the file's rows have not been counted."""
        size = self._source.identity.get("bytes")
        if self._source.total is not None or not position or not size:
            return self._source.total
        return max(done, int(float(f"{done * size / position:.3g}")))

    def _check_errors(self, failed: int) -> None:
        """Stop if too many rows failed. Failed rows of an earlier run count, so this is also checked before anything runs."""
        if failed <= self._most_failed:
            return
        errors = islice((error for results in self._space.results() for error in results.errors), 5)
        examples = "\n".join(f"row {error['row']}: {error['error']}: {error['message'][:200]}" for error in errors)
        summary = f"{failed} rows failed, which is more than --max-errors {self._options.max_errors}"
        steps = ("what is done is kept: raise the limit and give the same command again", "or --restart, if the model was mended")
        raise PredictError("RW833", summary, why=examples, next=steps)

    def _write(self) -> str | None:
        output = self._space.output
        with writing(output, "what is done so far is kept"):
            path = self._write_errors() if self._space.failed_rows else None
            write_output(output, self._space.results, self._space.done_rows, self._space.begin_placing)
            for stale in self._errors_paths() if path is None else ():
                if _is_list_of(output, stale):
                    stale.unlink(missing_ok=True)  # it belongs to the output that was just replaced
        return str(path) if path is not None else None

    def _write_errors(self) -> Path | None:
        is_second_try = self._space.noted("errors") is not None  # the list that is there may be ours, from a run that was killed
        if not is_second_try:
            self._space.note(errors="begun")

        def is_ours(path: Path, complete: Path) -> bool:
            return _is_list_of(self._space.output, path) or (is_second_try and path.read_bytes() == complete.read_bytes())

        return write_errors(self._errors_paths(), self._space.results(), is_ours)

    def _errors_paths(self) -> list[Path]:
        """errors.jsonl beside the output; if that lists the rows of another job, a name with the output's name in it."""
        output = self._space.output
        if self._options.errors:
            return [Path(self._options.errors)]
        return [output.with_name("errors.jsonl"), output.with_name(f"{output.name}.errors.jsonl")]


def _is_list_of(output: Path, path: Path) -> bool:
    """Whether this path holds the list of failed rows of the output that is there, however the path is spelled."""
    listed = read_marker(output).get("predicted", {}).get("errors")
    return bool(listed) and Path(listed).resolve() == path.resolve()
