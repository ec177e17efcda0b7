"""The side of `predict` that runs where the model is: in a worker of the pool, or in this process."""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import os
import resource
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, combinations, product
from typing import Any

import numpy as np
import torch

from rankwise.errors import RankwiseError, UnreadableInput, UsageError
from rankwise.files import stamp_of
from rankwise.offline.addresses import path_or_address
from rankwise.offline.row_batches import FILE_COLUMN, as_column, have_one_dtype
from rankwise.offline.values import as_array, copied, is_numbers, named_parts, own, storable
from rankwise.offline.workspace import PredictError
from rankwise.pool.api.model import by_text, named_list, output_names
from rankwise.pool.workers.runner import check_gpu_usable, is_out_of_memory, run_divided
from rankwise.weights.building import evaluating, import_callable

_NONE: Mapping[str, str] = {}


def build_runner(build: Any, weights: str, load: str, stack: bool) -> BatchRunner:
    """The model with its weights, ready to take batches."""
    if isinstance(build, str) and build.endswith(".pt2"):
        return BatchRunner(_program(build), load, stack)
    model = (import_callable(build) if isinstance(build, str) else build)()
    if not callable(model):
        raise UsageError(f"{build} returned a {type(model).__name__}, where a model is wanted", next=("return the model from it",))
    if weights:
        from rankwise.weights.loading import load_weights  # only here: it takes as long to import as a small model to build

        load_weights(model, weights)
    if isinstance(model, torch.nn.Module):
        evaluating(model)
    runner = BatchRunner(model, load, stack)
    runner.digest = "" if isinstance(build, str) else _digest_of(model)
    return runner


def _digest_of(model: Any) -> str:
    """A checksum of the first numbers of each parameter: training changes them, running does not."""
    digest = hashlib.sha256()
    for parameter in model.parameters() if isinstance(model, torch.nn.Module) else ():
        with suppress(Exception):  # some have no shape yet, or a type of their own that cannot be cut
            digest.update(as_array(parameter.detach().reshape(-1)[:_DIGESTED]).tobytes())
    return digest.hexdigest()[:16]


_DIGESTED = 64


def build_in_worker(stamp: tuple[str, tuple[int, int]] | None = None, **recipe: Any) -> Any:
    """`build_runner` for a pool. A finding (weights that do not fit) is returned as the answer to the first batch, not raised.

    `stamp` names the file of the job's weights, and how the file was recognised when the job began."""
    try:
        if stamp is not None and stamp_of(stamp[0]) != stamp[1]:
            why = "a worker that was started later would answer with other weights than those before it"
            steps = ("give weights that stay as they are, and --restart",)
            raise PredictError("RW831", f"{stamp[0]} was changed while the job ran", why=why, next=steps)
        return build_runner(**recipe)
    except RankwiseError as error:
        finding = error.finding.to_dict()
        return lambda *batch: {"refused": json.dumps(finding)}


class BatchRunner(torch.nn.Module):
    """Takes a batch of rows as numpy columns, returns its outputs as numpy columns and what went wrong row by row."""

    def __init__(self, model: Any, load: str, stack: bool) -> None:
        super().__init__()
        self._stack = stack
        self._load = import_callable(load) if load else load_file
        # An exported program refuses eval(), which reaches all submodules; a list hides it.
        self._hidden: list[Any] = [model]
        if isinstance(model, torch.nn.Module) and not isinstance(model, torch.fx.GraphModule):
            self.model = model
        self.digest = ""  # of the parameters, where nothing else tells one model from another
        self._signature = _signature_of(model)
        self._named = {name for name, each in self._signature.parameters.items() if each.kind in _NAMED}
        self._takes_indices = _takes_indices(model)
        self._dtype = next((tensor.dtype for tensor in _tensors_of(model) if tensor.is_floating_point()), None)

    def forward(self, columns: dict[str, Any], length: int, patience: int = 0, dtypes: Mapping[str, str] = _NONE) -> dict[str, Any]:
        """`spans` are the rows that worked (begin and end), `pieces` their outputs, `errors` the failed rows; `halved` if memory ran out.

        With `patience`, it gives up when so many of the first rows have failed alike; then the rows behind them are in neither list.
        """
        done = _Done(length, patience, dtypes)
        self._run(columns, 0, length, done)
        outcome = {"spans": done.spans, "pieces": done.pieces, "errors": done.errors, "halved": done.halved, "gave_up": done.gives_up}
        return {**outcome, "model": self.digest, "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10}

    def _run(self, columns: dict[str, Any], start: int, stop: int, done: _Done, tightly: Mapping[str, str] | None = None) -> None:
        """Run all rows at once; if that fails, run both halves, so that one bad row costs itself only.

        A row of another length, or a missing one, turns columns into lists that would be arrays without that row. So if lists fail, the
        model gets arrays wherever arrays can be made (`tightly`: the dtypes of these, as far as they are known).
        """

        def run(start: int, stop: int) -> None:
            if not done.gives_up:
                piece = as_columns(self._outputs({name: column[start:stop] for name, column in columns.items()}, tightly), stop - start)
                done.spans.append([start, stop])
                is_part = stop - start < done.length  # the model may use the memory of its outputs again for the next part
                done.pieces.append({name: copied(column) for name, column in piece.items()} if is_part else piece)

        def judge(error: BaseException, start: int, stop: int) -> int:
            check_gpu_usable(error)
            if isinstance(error, Unusable):  # fewer rows would fail in the same way, or seem to fit by chance
                done.errors += [_row_error(row, error) for row in range(start, stop)]
                return 0
            if not isinstance(error, (Exception, SystemExit)):  # sys.exit in a model would end the job, with exit code 0 at worst
                raise error
            ran_out = is_out_of_memory(error)
            done.halved |= ran_out
            if tightly is None and not ran_out and any(isinstance(column, list) for column in columns.values()):
                self._run(columns, start, stop, done, done.dtypes)
            elif stop - start > 1:
                return 2
            else:
                for name, column in columns.items():
                    if isinstance(column, list) and (odd := _oddness(column, start)):  # it was given in a list, which the model may refuse
                        error.add_note(f"{name!r} is {odd} in this row")
                done.errors.append(_row_error(start, error))
            return 0

        run_divided(run, judge, start, stop)

    def _outputs(self, columns: dict[str, Any], tightly: Mapping[str, str] | None) -> Any:
        """Whole numbers in a file may be meant as integers or as floating point, for each input separately: if the model fails on one, it
        gets the other. What works is not remembered, because a row's result must not depend on the rows before it. Only errors that torch
        raises for a wrong type are tried again."""
        arguments = self._arguments(columns, tightly)
        tried = [list(map(_dtype, arguments))]
        try:
            return self._call(arguments, list(columns))
        except (TypeError, RuntimeError, IndexError) as error:
            check_gpu_usable(error)
            if is_out_of_memory(error):
                raise
            wants_indices = self._takes_indices and _is_about_indices(error)
            for changed in _changes(tried[0]):
                others = self._arguments(columns, tightly, changed, wants_indices)
                if (kinds := list(map(_dtype, others))) in tried:
                    continue
                tried.append(kinds)
                try:
                    return self._call(others, list(columns))
                except Exception as other:
                    check_gpu_usable(other)
                    if is_out_of_memory(other):
                        raise
                    if len(tried) == 2:  # more notes would not help
                        error.add_note(f"and as {', '.join(sorted({str(kind) for kind in kinds}))}: {other}")
                    wants_indices |= self._takes_indices and _is_about_indices(other)
            raise error from None

    def _call(self, arguments: Sequence[Any], names: list[str]) -> Any:
        """Several columns go by name if the model has a parameter of each name: tokenizers do not give their columns in the order of a
        model's parameters, and an attention mask in the place of another input would raise no error."""
        named: dict[str, Any] = {}
        if 1 < len(arguments) == len(names) and self._named.issuperset(names):
            bound = self._signature.bind_partial(**dict(zip(names, arguments)))
            arguments, named = bound.args, bound.kwargs
        with torch.inference_mode():
            return self._hidden[0](*arguments, **named)

    def _arguments(
        self, columns: dict[str, Any], tightly: Mapping[str, str] | None, changed: Collection[int] = (), as_indices: bool = False
    ) -> list[Any]:
        """`changed` are the places of inputs that are given as floating point instead of integers, or the other way round."""

        def tensor(value: Any, place: int = 0) -> torch.Tensor:
            return self._tensor(value, place in changed, as_indices)

        if FILE_COLUMN in columns:
            loaded = [own(self._load(path)) for path in columns[FILE_COLUMN]]  # a loader may fill one buffer again and again
            if not have_one_dtype(loaded):
                raise ValueError("the files of a batch are of several dtypes")
            if all(isinstance(item, torch.Tensor) for item in loaded):
                return [tensor(torch.stack(loaded))]
            return [tensor(np.stack(loaded)) if all(isinstance(item, np.ndarray) for item in loaded) else loaded]
        values = list(columns.values())
        if tightly is not None:
            values = [_tight(value, tightly.get(name)) if isinstance(value, list) else value for name, value in columns.items()]
        if self._stack and len(values) > 1 and all(map(_is_of_matrix, values)):
            if any(isinstance(value, list) for value in values):  # as inputs of their own they would be something else to the model
                raise ValueError("columns of numbers make no matrix where one is missing")
            stacked = as_array(np.stack([np.asarray(value) for value in values], axis=1))
            return [tensor(torch.from_numpy(stacked))]  # a new array, so the model may write to it
        # Copies: if the model fails, the same rows run again, and must be as they were before the model wrote to them.
        return [tensor(own(value), place) if is_numbers(value) else list(map(own, value)) for place, value in enumerate(values)]

    def _tensor(self, value: Any, is_changed: bool, as_indices: bool) -> torch.Tensor:
        """Put a tensor on the model's device. Floating point gets the model's dtype, which files rarely have; so do integers that are
        changed. With `as_indices`, integers get a width that torch takes for indices, and changed floating point becomes integers if it is
        whole: only of a row alone, because other rows must not become integers because of one that fails."""
        tensor = value if isinstance(value, torch.Tensor) else torch.from_numpy(as_array(value))
        place = next((tensor.device for tensor in _tensors_of(self._hidden[0])), tensor.device)
        dtype = self._dtype if is_changed or tensor.is_floating_point() else None
        if tensor.is_floating_point() and is_changed and as_indices and len(tensor) == 1:
            dtype = torch.int64 if bool((tensor.isfinite() & (tensor == tensor.round())).all()) else self._dtype
        elif as_indices and not is_changed and tensor.dtype in _NARROW:
            dtype = torch.int64
        return tensor.to(place) if dtype is None or tensor.is_complex() else tensor.to(place, dtype)


class _Done:
    def __init__(self, length: int, patience: int, dtypes: Mapping[str, str]) -> None:
        self.length, self._patience, self.dtypes = length, patience, dtypes
        self.spans: list[list[int]] = []
        self.pieces: list[dict[str, Any]] = []
        self.errors: list[list[Any]] = []
        self.halved = False

    @property
    def gives_up(self) -> bool:
        """Whether the first rows have failed alike, and rows are left."""
        is_enough = self._patience and not self.spans and self._patience <= len(self.errors) < self.length
        return bool(is_enough) and len({kind for _, kind, _ in self.errors}) == 1


class Unusable(ValueError):
    """The model ran, but did not return one row for each row of the input."""


def as_columns(outputs: Any, length: int) -> dict[str, Any]:
    """A model's outputs as named columns with one entry per row. Entries of a dictionary that are None are left out."""
    named = named_parts(outputs)
    if named is None:
        named = named_list(outputs) if isinstance(outputs, tuple) else {output_names(None)[0]: outputs}
    try:
        texts = by_text(named)
    except TypeError as error:
        raise Unusable(f"the model returned outputs that cannot be told apart: {error}") from error
    columns = {name: _as_column(name, value, length) for name, value in texts.items() if value is not None}
    if not columns:
        raise Unusable("the model returned nothing (None): return its outputs from forward")
    for name, column in columns.items():
        if len(column) != length:
            if isinstance(column, np.ndarray) and column.shape[1:2] == (length,):  # halves would seem to fit once they are as long
                summary = f"the model returned {name!r} with {length} rows in its second dimension ({list(column.shape)})"
                raise Unusable(f"{summary}, where they have to be in its first: batch_first=True, or transpose(0, 1)")
            raise ValueError(f"the model returned {len(column)} values as {name!r} for {length} rows")
    return columns


def _as_column(name: str, value: Any, length: int) -> Any:
    if isinstance(value, torch.Tensor) and value.is_nested:
        value = list(value.unbind())
    if is_numbers(value):
        array = as_array(value)
        if not array.ndim and length == 1:  # a model that squeezes its output does so with a single row, too
            return array.reshape(1)
        if not array.ndim:
            raise Unusable(f"the model returned a single number as {name!r} for {length} rows, where one value per row is wanted")
        return array
    if not isinstance(value, (np.ndarray, list, tuple)):
        what = f"a {type(value).__name__} as {name!r}"
        raise Unusable(f"the model returned {what}, where a tensor, an array or a list with one entry per row is wanted: leave it out")
    try:
        entries = [storable(item) for item in value]
    except TypeError as error:
        raise ValueError(f"the model returned something as {name!r} that cannot be written: {error}") from error
    shapes = {(item.dtype, item.shape) if isinstance(item, (np.ndarray, np.generic)) else None for item in entries}
    if len(entries) != length and all(shape is not None and length in shape[1][:2] for shape in shapes):
        raise Unusable(f"the model returned a list of {len(entries)} tensors of {length} rows each; return them as a tuple or a dictionary")
    return np.stack(entries) if len(shapes) == 1 and None not in shapes else entries


def _tight(values: list[Any], dtype: str | None) -> Any:
    """As an array where that can be made, of the type that the column has where no row is missing."""
    column = as_column(values)
    return np.asarray(values, dtype) if dtype and isinstance(column, np.ndarray) else column


def _is_of_matrix(column: Any) -> bool:
    """Whether it holds single numbers, some of which may be missing."""
    if isinstance(column, list):
        return all(value is None or isinstance(value, (int, float)) for value in column)
    return is_numbers(column) and np.ndim(column) == 1


def _oddness(column: list[Any], row: int) -> str:
    """What is odd about this row: it is missing, or a text, where other rows have numbers. Empty if nothing is."""
    if isinstance(value := column[row], str):
        return repr(value[:100]) if any(isinstance(other, (int, float)) for other in column[:_MOST_LOOKED_AT]) else ""
    return "missing" if value is None else ""


_MOST_LOOKED_AT = 64  # rows; few, because they are looked at for each row that fails


def _row_error(row: int, error: BaseException) -> list[Any]:
    text = "; ".join([str(error), *getattr(error, "__notes__", ())])
    return [row, type(error).__name__, text[:2000]]


_NARROW = (torch.int8, torch.int16, torch.uint8, torch.uint16, torch.uint32, torch.uint64)  # integers that torch does not take for indices
_WHOLE = (torch.int32, torch.int64, torch.bool, *_NARROW)
_MAX_EACH = 4  # up to so many inputs, each one is changed separately


def _changes(dtypes: Sequence[Any]) -> list[tuple[int, ...]]:
    """Which inputs to give as another type, the most likely first: as few as possible from floating point to integers, and all or none of
    the integers before some of them."""
    whole = tuple(place for place, dtype in enumerate(dtypes) if dtype in _WHOLE)
    floating = tuple(place for place, dtype in enumerate(dtypes) if dtype is not None and dtype.is_floating_point)
    if len(whole) + len(floating) > _MAX_EACH:
        return [(), whole, floating, whole + floating]
    pairs = product(_subsets(whole), _subsets(floating))
    likelier_first = sorted(pairs, key=lambda pair: (len(pair[1]), pair[0] not in ((), whole), len(pair[0])))
    return [numbers + indices for numbers, indices in likelier_first]


def _subsets(places: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [chosen for count in range(len(places) + 1) for chosen in combinations(places, count)]


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _signature_of(model: Any) -> inspect.Signature:
    model = getattr(model, "_orig_mod", model)  # of a compiled model, whose own signature names nothing
    try:
        return inspect.signature(model.forward if isinstance(model, torch.nn.Module) else model)
    except (TypeError, ValueError):  # of some functions in C, and of TorchScript
        return inspect.Signature()


def _takes_indices(model: Any) -> bool:
    """Whether it has an embedding; in a program that is an operation of its graph."""
    if isinstance(model, torch.fx.GraphModule):
        called = [str(node.target) for node in model.graph.nodes if node.op == "call_function"]
        return any("embedding" in name for name in called)
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    return isinstance(model, torch.nn.Module) and any(isinstance(module, kinds) for module in model.modules())


def _is_about_indices(error: Exception) -> bool:
    """Whether torch complains that indices are floating point, as far as the text tells."""
    return any(word in str(error) for word in ("indices", "index"))


def _dtype(value: Any) -> torch.dtype | None:
    return value.dtype if isinstance(value, torch.Tensor) else None


def _tensors_of(model: Any) -> Iterator[torch.Tensor]:
    """Parameters, then buffers; if a program has neither, the inputs it was exported with."""
    if isinstance(model, torch.nn.Module):
        yield from chain(model.parameters(), model.buffers(), getattr(model, _EXAMPLES, ()))


_EXAMPLES = "rankwise_examples"


def _program(path: str) -> Any:
    if not zipfile.is_zipfile(path):  # torch would print a traceback of its own
        what = "is not a program" if os.path.exists(path) else "is not there"
        raise UnreadableInput(f"{path} {what}", next=("check the path; rankwise weights convert makes a program",))
    try:
        program = torch.export.load(path)
        model = program.module()
        examples = torch.utils._pytree.tree_leaves(program.example_inputs or ())
        setattr(model, _EXAMPLES, [value for value in examples if isinstance(value, torch.Tensor)])
        return model
    except Exception as error:  # torch raises many kinds of errors for other files
        why = f"{type(error).__name__}: {str(error)[:300]}"
        raise UnreadableInput(f"{path} cannot be read as a program", why=why, next=("rankwise weights convert makes one",)) from error


_TABLES = (".parquet", ".pq", ".arrow", ".feather", ".ipc")


def load_file(path: str) -> Any:
    """The content of a file of a folder: the array of a .npy file, otherwise the bytes."""
    place = path_or_address(path)
    if place.suffix.lower() in _TABLES:  # many programs write a table as a folder of such files
        raise ValueError(
            f"{place.name} is a table, where each file of a folder is a row: give one file of it, or say with --load what a row is"
        )
    with place.open("rb") as file:
        data = file.read()
    return np.load(io.BytesIO(data), allow_pickle=False) if place.suffix == ".npy" else data


def best_device(wanted: str) -> str:
    return wanted if wanted != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
