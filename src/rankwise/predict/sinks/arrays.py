""".npy and .safetensors: row i of the output belongs to row i of the input; failed rows are NaN, or 0 where that cannot be said."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from rankwise.predict.parts import Results
from rankwise.predict.sinks.sink import first_columns
from rankwise.predict.workspace import PredictError

Parts = Callable[[], Iterable[Results]]
Array = np.ndarray[Any, Any]
_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL", "complex64": "C64",
}  # fmt: skip


def write_npy(parts: Parts, total: int, path: Path) -> None:
    """The model's one output."""
    columns = {name: column for name, column in first_columns(parts()).items() if isinstance(column, np.ndarray)}
    if len(columns) > 1:
        summary = f".npy holds one output, the model has {len(columns)}: {', '.join(columns)}"
        raise PredictError("RW834", summary, next=("write .safetensors or .parquet",))
    name, like = next(iter(columns.items()), ("output", np.zeros((0,), np.float32)))
    with path.open("wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(like.dtype), "fortran_order": False, "shape": (total, *like.shape[1:])}
        np.lib.format.write_array_header_1_0(file, header)
        _write_column(file, parts(), name, like)


def write_safetensors(parts: Parts, total: int, path: Path) -> None:
    """One tensor per output; each is written in a pass of its own."""
    columns = {name: column for name, column in first_columns(parts()).items() if isinstance(column, np.ndarray)}
    entries: dict[str, Any] = {}
    at = 0
    for name, column in sorted(columns.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        shape = [total, *column.shape[1:]]
        nbytes = int(np.prod(shape, dtype=np.int64)) * column.dtype.itemsize
        if column.dtype.name not in _NAMES:
            raise PredictError("RW834", f"the output {name!r} is {column.dtype}, which safetensors cannot hold")
        entries[name] = {"dtype": _NAMES[column.dtype.name], "shape": shape, "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in entries:
            _write_column(file, parts(), name, columns[name])


def _write_column(file: BinaryIO, parts: Iterable[Results], name: str, like: Array) -> None:
    for results in parts:
        for block in _blocks(results, name, like):
            file.write(block)


def _blocks(results: Results, name: str, like: Array) -> Iterator[bytes]:
    """The part's rows with the failed ones filled in."""
    if len(results.rows) == results.length:
        yield _checked(results, name, like).tobytes()
        return
    whole = np.full((results.length, *like.shape[1:]), np.nan if like.dtype.kind in "fc" else 0, like.dtype)
    if len(results.rows):
        whole[results.rows - results.first_row] = _checked(results, name, like)
    yield whole.tobytes()


def _checked(results: Results, name: str, like: Array) -> Array:
    column = results.columns.get(name)
    if not isinstance(column, np.ndarray) or column.shape[1:] != like.shape[1:] or column.dtype != like.dtype:
        found = f"{column.dtype}{list(column.shape[1:])}" if isinstance(column, np.ndarray) else "a list"
        summary = f"the output {name!r} of row {results.rows[0]} is {found}, those before it {like.dtype}{list(like.shape[1:])}"
        raise PredictError("RW834", summary)
    return np.ascontiguousarray(column)
