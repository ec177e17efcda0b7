"""The side of `predict` that runs where the model is: in a worker of the pool, or in this process."""

from __future__ import annotations

import json
import os
import resource
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rankwise.errors import RankwiseError, UnreadableInput, UsageError
from rankwise.pool.child.running import is_out_of_memory
from rankwise.predict.batches import as_column
from rankwise.weights.building import import_callable
from rankwise.weights.loading import load_weights


def build_runner(build: Any, weights: str, load: str, stack: bool) -> Runner:
    """The model with its weights, ready to take batches."""
    if isinstance(build, str) and build.endswith(".pt2"):
        return Runner(_program(build), load, stack)
    model = (import_callable(build) if isinstance(build, str) else build)()
    if not callable(model):
        raise UsageError(f"{build} returned a {type(model).__name__}, where a model is wanted", next=("return the model from it",))
    if weights:
        load_weights(model, weights)
    if isinstance(model, torch.nn.Module):
        model.eval()
    return Runner(model, load, stack)


def build_in_worker(**recipe: Any) -> Any:
    """The same for a pool. A finding (weights that do not fit) comes back as the answer to the first batch, not as a traceback."""
    try:
        return build_runner(**recipe)
    except RankwiseError as error:
        finding = error.finding.to_dict()
        return lambda columns, length: {"refused": json.dumps(finding)}


class Runner(torch.nn.Module):
    """Takes a batch of rows as numpy columns, returns its outputs as numpy columns and what went wrong row by row."""

    def __init__(self, model: Any, load: str, stack: bool) -> None:
        super().__init__()
        self._stack = stack
        self._load = import_callable(load) if load else load_file
        # An exported program refuses eval(), which reaches all submodules; in a list it is none.
        self._hidden: list[Any] = [model]
        if isinstance(model, torch.nn.Module) and not isinstance(model, torch.fx.GraphModule):
            self.model = model
        self._dtype = next((p.dtype for p in self.parameters() if p.is_floating_point()), None)

    def forward(self, columns: dict[str, Any], length: int) -> dict[str, Any]:
        """`rows` are those that worked, `columns` their outputs, `errors` the others; `halved` if memory ran out on the way."""
        done = _Done()
        self._run(columns, 0, length, done)
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        return {"rows": done.rows, "pieces": done.pieces, "errors": done.errors, "halved": done.halved, "peak_bytes": peak_bytes}

    def _run(self, columns: dict[str, Any], start: int, stop: int, done: _Done, tightly: bool = False) -> None:
        """All rows at once; if that fails, both halves, so that one bad row costs itself and no other.

        One row of another length, or a missing one, makes lists of what are arrays without it. So where lists fail, the model gets
        arrays wherever they can be made (`tightly`).
        """
        try:
            with torch.inference_mode():
                outputs = self._hidden[0](*self._arguments(columns, start, stop, tightly))
            piece = as_columns(outputs, stop - start)
        except Exception as error:
            ran_out = is_out_of_memory(error)
            done.halved |= ran_out
            if not tightly and not ran_out and any(isinstance(column, list) for column in columns.values()):
                self._run(columns, start, stop, done, tightly=True)
            elif stop - start > 1:
                middle = (start + stop) // 2
                self._run(columns, start, middle, done, tightly)
                self._run(columns, middle, stop, done, tightly)
            else:
                done.errors.append([start, type(error).__name__, str(error)[:2000]])
            return
        done.rows += range(start, stop)
        done.pieces.append(piece)

    def _arguments(self, columns: dict[str, Any], start: int, stop: int, tightly: bool) -> list[Any]:
        if "__file__" in columns:
            loaded = [self._load(path) for path in columns["__file__"][start:stop]]
            return [self._tensor(np.stack(loaded)) if all(isinstance(item, np.ndarray) for item in loaded) else _stacked(loaded)]
        values = [column[start:stop] for column in columns.values()]
        if tightly:
            values = [as_column(value) if isinstance(value, list) else value for value in values]
        if self._stack and len(values) > 1 and all(is_numeric(value) and np.ndim(value) == 1 for value in values):
            return [self._tensor(np.stack([np.asarray(value) for value in values], axis=1))]
        return [self._tensor(value) if is_numeric(value) else list(value) for value in values]

    def _tensor(self, value: Any) -> torch.Tensor:
        """On the model's device, and where it is floating point in the model's dtype: files rarely have the same."""
        tensor = value if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))  # copied: lanes are read-only
        place = next((p.device for p in self.parameters()), tensor.device)
        return tensor.to(place, self._dtype if self._dtype is not None and tensor.is_floating_point() else tensor.dtype)


class _Done:
    def __init__(self) -> None:
        self.rows: list[int] = []
        self.pieces: list[dict[str, Any]] = []
        self.errors: list[list[Any]] = []
        self.halved = False


def as_columns(outputs: Any, length: int) -> dict[str, Any]:
    """A model's outputs as named columns with one entry per row."""
    if isinstance(outputs, dict):
        named = {str(name): value for name, value in outputs.items()}
    elif isinstance(outputs, tuple):
        named = dict(zip(_field_names(outputs), outputs))
    else:
        named = {"output": outputs}
    columns = {name: _as_column(value) for name, value in named.items() if value is not None}
    for name, column in columns.items():
        if len(column) != length:
            raise ValueError(f"the model returned {len(column)} values as {name!r} for {length} rows")
    return columns


def _program(path: str) -> Any:
    if not zipfile.is_zipfile(path):  # torch would print a traceback of its own
        what = "is not a program" if os.path.exists(path) else "is not there"
        raise UnreadableInput(f"{path} {what}", next=("check the path; rankwise weights convert makes a program",))
    try:
        return torch.export.load(path).module()
    except Exception as error:  # whatever torch raises for a file that is none
        why = f"{type(error).__name__}: {str(error)[:300]}"
        raise UnreadableInput(f"{path} cannot be read as a program", why=why, next=("rankwise weights convert makes one",)) from error


def load_file(path: str) -> Any:
    """What a file of a folder holds: an array of a .npy file, otherwise its bytes."""
    if path.endswith(".npy"):
        return np.load(path, allow_pickle=False)
    if os.path.getsize(path) > 1 << 30:
        raise ValueError(f"{path} has more than a gigabyte; give --load a callable that reads it")
    return Path(path).read_bytes()


def best_device(wanted: str) -> str:
    return wanted if wanted != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def is_numeric(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, np.ndarray)) and (isinstance(value, torch.Tensor) or value.dtype.kind in "biufc")


def _stacked(loaded: list[Any]) -> Any:
    return torch.stack(loaded) if all(isinstance(item, torch.Tensor) for item in loaded) else loaded


def _field_names(outputs: tuple[Any, ...]) -> list[str]:
    return list(getattr(outputs, "_fields", ())) or [f"output_{i}" for i in range(len(outputs))]


def _as_column(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        wide = value.float() if value.dtype == torch.bfloat16 or "float8" in str(value.dtype) else value
        return wide.detach().cpu().contiguous().numpy()
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, (list, tuple)):
        return [item.tolist() if isinstance(item, (torch.Tensor, np.ndarray)) else item for item in value]
    raise TypeError(f"the model returned a {type(value).__name__}; a tensor, an array or a list with one entry per row is wanted")
