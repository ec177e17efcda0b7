"""Writes outputs as arrays with a row for each row of the input; failed rows are NaN, or 0 for types that have no NaN."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, BinaryIO

import numpy as np

from rankwise.offline.columns import is_lists
from rankwise.offline.format import Parts
from rankwise.offline.lazy import pa
from rankwise.offline.parts import Results
from rankwise.offline.row_batches import Column, is_arrow
from rankwise.offline.table_reading import as_numpy
from rankwise.offline.text_lines import entries
from rankwise.offline.values import Array
from rankwise.offline.workspace import PredictError


def first_rows(parts: Parts) -> dict[str, Array]:
    """Each output's first row; all other rows have to be like it. Names of files are left out: row i belongs to the i-th file."""
    found: dict[str, Array] = {}
    for results in parts():
        for name, column in results.columns.items():
            if name not in found and name != results.file_column:
                found[name] = _numbers(_rows(column)[0], name, int(results.rows[0]))
    return found


def write_column(file: BinaryIO, parts: Iterable[Results], name: str, like: Array) -> None:
    """Write one column, with failed rows filled in."""
    for results in parts:
        whole = np.full((results.length, *like.shape), np.nan if like.dtype.kind in "fc" else 0, like.dtype)
        if len(results.rows):
            whole[results.rows - results.first_row] = _checked(results, name, like)
        file.write(whole.tobytes())


def _checked(results: Results, name: str, like: Array) -> Array:
    """The column as one array; raises if a row is not like the output's first row."""
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
    kind = getattr(column.type, "storage_type", column.type)
    while is_lists(kind):
        kind = kind.value_type
    return as_numpy(column) if pa.types.is_primitive(kind) and not pa.types.is_temporal(kind) else entries(column)


def _numbers(value: Any, name: str, row: int) -> Array:
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "biufc":
        what = "missing" if value is None else "text" if isinstance(value, str) else "no array of numbers"
        raise PredictError("RW834", f"{name!r} of row {row} is {what}, and this format holds arrays of numbers only")
    return array
