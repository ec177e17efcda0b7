""".npy and .safetensors: row i of the output belongs to row i of the input; failed rows are NaN, or 0 where that cannot be said."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from rankwise.offline.batches import Column, is_arrow
from rankwise.offline.parts import Results
from rankwise.offline.sinks.entries import entries
from rankwise.offline.sources.tables import arrow, as_numpy, is_lists
from rankwise.offline.workspace import PredictError

Parts = Callable[[], Iterable[Results]]
Array = np.ndarray[Any, Any]
_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL", "complex64": "C64",
}  # fmt: skip


def write_npy(parts: Parts, total: int, path: Path) -> None:
    """The model's one output."""
    outputs = _outputs(parts)
    if len(outputs) > 1:
        summary = f".npy holds one output, the model has {len(outputs)}: {', '.join(outputs)}"
        raise PredictError("RW834", summary, next=("write .parquet, or .safetensors where all are arrays",))
    name, like = next(iter(outputs.items()), ("", np.zeros((), np.float32)))
    with path.open("wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(like.dtype), "fortran_order": False, "shape": (total, *like.shape)}
        np.lib.format.write_array_header_1_0(file, header)
        _write_column(file, parts(), name, like)


def write_safetensors(parts: Parts, total: int, path: Path) -> None:
    """One tensor per output; each is written in a pass of its own."""
    outputs = dict(sorted(_outputs(parts).items(), key=lambda item: (-item[1].dtype.itemsize, item[0])))
    header: dict[str, Any] = {}
    at = 0
    for name, like in outputs.items():
        if like.dtype.name not in _NAMES or name == "__metadata__":
            why = "the name has a meaning of its own there" if like.dtype.name in _NAMES else f"it is {like.dtype}"
            raise PredictError("RW834", f"safetensors cannot hold the output {name!r}", why=why, next=("write .npy or .jsonl",))
        nbytes = total * like.nbytes
        header[name] = {"dtype": _NAMES[like.dtype.name], "shape": [total, *like.shape], "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, like in outputs.items():
            _write_column(file, parts(), name, like)


def _outputs(parts: Parts) -> dict[str, Array]:
    """Each output's first row, which all others have to be like. Names of files are no output: row i is the i-th of them."""
    found: dict[str, Array] = {}
    for part in parts():
        for name, column in part.columns.items():
            if name not in found and name != part.file_column:
                found[name] = _numbers(_rows(column)[0], name, int(part.rows[0]))
    return found


def _write_column(file: BinaryIO, parts: Iterable[Results], name: str, like: Array) -> None:
    for part in parts:
        for block in _blocks(part, name, like):
            file.write(block)


def _blocks(results: Results, name: str, like: Array) -> Iterator[bytes]:
    """The part's rows with the failed ones filled in."""
    if len(results.rows) == results.length:
        yield _checked(results, name, like).tobytes()
        return
    whole = np.full((results.length, *like.shape), np.nan if like.dtype.kind in "fc" else 0, like.dtype)
    if len(results.rows):
        whole[results.rows - results.first_row] = _checked(results, name, like)
    yield whole.tobytes()


def _checked(results: Results, name: str, like: Array) -> Array:
    """The column as one array, every row of it like the first one of all."""
    column = _rows(results.columns.get(name, [None] * len(results.rows)))
    wanted = (like.dtype, like.shape)
    if isinstance(column, np.ndarray) and (column.dtype, column.shape[1:]) == wanted:
        return column
    numbers = [_numbers(value, name, row) for value, row in zip(column, results.rows.tolist())]
    for row, array in zip(results.rows.tolist(), numbers):
        if (array.dtype, array.shape) != wanted:
            found = f"{array.dtype}{list(array.shape)}, those before it {like.dtype}{list(like.shape)}"
            raise PredictError("RW834", f"the output {name!r} of row {row} is {found}")
    return np.stack(numbers)


def _rows(column: Column) -> Column:
    if not is_arrow(column):
        return column
    types, kind = arrow("types"), getattr(column.type, "storage_type", column.type)
    while is_lists(kind):
        kind = kind.value_type
    return as_numpy(column) if types.is_primitive(kind) and not types.is_temporal(kind) else entries(column)


def _numbers(value: Any, name: str, row: int) -> Array:
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "biufc":
        what = "missing" if value is None else "text" if isinstance(value, str) else "no array of numbers"
        raise PredictError("RW834", f"{name!r} of row {row} is {what}, and this format holds arrays of numbers only")
    return array
