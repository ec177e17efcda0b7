"""What each row takes. A row's bytes are its own, whatever rows it stands with: groups and parts are cut by them."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from rankwise.offline.batches import Column, is_arrow
from rankwise.offline.sources.tables import arrow, is_lists

Sizes = np.ndarray[Any, np.dtype[np.int64]]
_EACH = 8  # a number, or what a text or a list takes beside its content


def row_bytes(columns: dict[str, Column], length: int) -> Sizes:
    """Of all columns together, row by row."""
    return sum((_of_column(column) for column in columns.values()), np.zeros(length, np.int64))


def all_bytes(columns: dict[str, Column], length: int) -> int:
    """Of all rows together."""
    arrays = [column for column in columns.values() if isinstance(column, np.ndarray)]
    others = {name: column for name, column in columns.items() if not isinstance(column, np.ndarray)}
    return sum(array.nbytes for array in arrays) + (int(row_bytes(others, length).sum()) if others else 0)


def _of_column(column: Column) -> Sizes:
    if isinstance(column, np.ndarray):
        return np.full(len(column), column.dtype.itemsize * int(np.prod(column.shape[1:], dtype=np.int64)))
    if is_arrow(column):
        return _of_arrow(column)
    return np.fromiter(map(_of_value, column), np.int64, len(column))


def _of_value(value: Any) -> int:
    if value is None:
        return 0  # as a column that is not there
    if isinstance(value, (str, bytes)):
        return len(value) + _EACH
    if isinstance(value, (np.ndarray, np.generic)):
        return int(value.nbytes)
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return _EACH
    return _EACH + sum(map(_of_value, value))


def _of_arrow(column: Any) -> Sizes:
    types, kind = arrow("types"), column.type
    if types.is_dictionary(kind):
        return _of_arrow(column.dictionary_decode())
    if types.is_struct(kind):
        return sum(map(_of_arrow, column.flatten()), np.zeros(len(column), np.int64))
    if is_lists(kind):
        lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        ends = np.cumsum(lengths, dtype=np.int64)
        before = np.concatenate([[0], np.cumsum(_of_arrow(column.flatten()))])
        return np.asarray(before[ends] - before[ends - lengths] + _EACH)
    if types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind):
        lengths = importlib.import_module("pyarrow.compute").binary_length(column)
        return np.asarray(lengths.fill_null(0).to_numpy(zero_copy_only=False), np.int64) + _EACH
    try:
        return np.full(len(column), -(-kind.bit_width // 8))
    except ValueError:  # a kind of no fixed width
        return np.fromiter((len(str(value)) for value in column), np.int64, len(column))
