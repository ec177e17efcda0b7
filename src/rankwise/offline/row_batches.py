"""Batches of rows: columns of equal length, as arrays, or as lists of values that no array can hold."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from rankwise.errors import UsageError
from rankwise.offline.lazy import pa
from rankwise.offline.values import EXACT, NUMBERS, as_array, is_held_by_float, is_tensor

# np.ndarray, a list with one entry per row, or (only for columns that are kept) a pyarrow Array, whose type is the input's own
Column = Any
Chosen = tuple[list[str], list[str]]  # names of columns: for the model, and for the output
_INDEX = re.compile(r"(__index_level_\d+__)?")  # pandas writes a column of row numbers or names, which is not for a model
FILE_COLUMN = "__file__"  # a column of paths; the files are read where the model is


@dataclass(frozen=True)
class Batch:
    """Consecutive rows of the input. `broken` has the rows that could not be read: {index in the batch: why}."""

    first_row: int
    columns: dict[str, Column]
    length: int
    broken: dict[int, str] = field(default_factory=dict)
    kept: dict[str, Column] = field(default_factory=dict)  # carried over to the output, without the model
    position: int | None = None  # where the reader stands behind this batch, for readers that cannot count rows
    dtypes: dict[str, str] = field(default_factory=dict)  # of columns that are lists here, because rows are missing or differ in length


@dataclass(frozen=True)
class Selection:
    """Which columns the model gets, in this order (if none are named, all that are left), and which go straight to the output."""

    columns: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()

    def of(self, names: list[str], where: str) -> Chosen:
        """The chosen ones of a file's columns; raises UsageError for a column that it lacks or has twice."""
        wanted = list(self.columns) or [name for name in names if name not in self.keep and not _INDEX.fullmatch(name)]
        if len(set(self.columns)) < len(self.columns):
            raise UsageError("a column is named twice", why=", ".join(self.columns), next=("name each column of the model once",))
        if FILE_COLUMN in wanted:
            raise UsageError(f"a column {FILE_COLUMN!r} cannot be given to the model", why="it would stand for files", next=("rename it",))
        times = Counter(names)
        for name in (*wanted, *self.keep):
            if not times[name]:
                why = f"it has {', '.join(names[:20])}" if names else "there is no row in it"
                raise UsageError(f"{where} has no column {name!r}", why=why)
            if times[name] > 1:
                raise UsageError(f"{where} has {times[name]} columns {name!r}", next=("give each a name of its own",))
        if names and not wanted:
            raise UsageError(f"all columns of {where} are kept, and none is left for the model", next=("name its columns: --columns",))
        return wanted, list(self.keep)

    def of_first(self, rows: Iterable[Row], where: str) -> Chosen | None:
        """The chosen columns of rows that may have different names. Only as many rows are looked at as it takes to find all wanted names.
        If no columns are named, the model gets those of the first row. If no row can be read, the named columns, or None."""
        first: list[str] = []
        seen: dict[str, None] = {}
        for row in rows:
            first = first or list(row.values)
            seen.update(dict.fromkeys(row.values))
            if seen and all(name in seen for name in (*self.columns, *self.keep)):
                break
        if not seen:
            return (list(self.columns), list(self.keep)) if self.columns else None
        columns, keep = self.of(list(seen), where)
        return (columns if self.columns else [name for name in columns if name in first] or columns), keep


def taken(columns: dict[str, Column], rows: Sequence[int]) -> dict[str, Column]:
    """These rows of all columns."""
    return {name: _taken(column, rows) for name, column in columns.items()}


def is_arrow(column: Column) -> bool:
    """Whether it is an Arrow array. Does not import pyarrow: a caller with such an array has done so."""
    return hasattr(column, "to_pylist")


def _taken(column: Column, rows: Sequence[int]) -> Column:
    if isinstance(column, np.ndarray):
        return column[np.asarray(rows, np.int64)]
    return column.take(np.asarray(rows, np.int64)) if is_arrow(column) else [column[row] for row in rows]


def join_columns(pieces: list[tuple[dict[str, Column], int]]) -> dict[str, Column]:
    """Join columns, each with its number of rows. A column that a piece lacks is None there: a model may have optional outputs."""
    names = dict.fromkeys(name for columns, _ in pieces for name in columns)
    return {name: joined([columns[name] if name in columns else [None] * length for columns, length in pieces]) for name in names}


def joined(columns: list[Column]) -> Column:
    """The pieces of one column as one."""
    if len(columns) == 1:
        return columns[0]
    if all(isinstance(column, np.ndarray) for column in columns) and len({(column.shape[1:], column.dtype) for column in columns}) == 1:
        return np.concatenate(columns)
    if all(is_arrow(column) for column in columns):
        return pa.concat_arrays(columns)
    return [value for column in columns for value in column]


Values = Mapping[str, Any]


class Row(NamedTuple):
    """One row's values by name, for the model (`values`) and as they are in the input (`kept`); or why it cannot be read."""

    values: Values = MappingProxyType({})
    kept: Values = MappingProxyType({})
    why: str = ""


def of_rows(
    rows: list[Row], first_row: int, chosen: Chosen, position: int | None = None, fractional: Collection[str] = frozenset()
) -> Batch:
    """Rows as columns. Rows that cannot be read, or that lack what the model wants, become `broken`. Whole numbers in `fractional`
    columns become floating point."""
    broken: dict[int, str] = {}
    for i, row in enumerate(rows):
        if row.why:
            broken[i] = row.why
        elif missing := [name for name in chosen[0] if name not in row.values]:
            broken[i] = f"it has no {missing[0]!r}"
    columns: dict[str, Column] = {}
    if len(broken) < len(rows):
        # what stands in for a broken row never reaches the model; it keeps the column an array
        filler = next(row.values for i, row in enumerate(rows) if i not in broken)
        whole = [filler if i in broken else row.values for i, row in enumerate(rows)]
        for name in chosen[0]:
            columns[name], rounded = _exact_column([values[name] for values in whole], name in fractional)
            for i in rounded:
                broken.setdefault(i, f"{name!r} has a whole number that float64 rounds, and no other type holds beside the others")
    kept = {name: [row.kept.get(name) for row in rows] for name in chosen[1]}
    return Batch(first_row, columns, len(rows), broken, kept, position)


def as_column(values: list[Any]) -> Column:
    """The values of one column as an array if they are numbers, or lists of numbers of one shape; otherwise the list itself."""
    if not values or isinstance(values[0], (str, bytes, dict)) or values[0] is None:
        return values
    try:
        arrays = [as_array(value) if is_tensor(value) else value for value in values]
        if not have_one_dtype(arrays):
            return values
        array = np.asarray(arrays)
        if array.dtype.kind == "u" and not any(hasattr(value, "dtype") for value in values):
            array = array.astype(np.float64)  # as numpy makes of it beside signed numbers
    except (ValueError, TypeError, RuntimeError):  # rows of different lengths, or of what no array can hold
        return values
    return array.astype(array.dtype.newbyteorder("="), copy=False) if array.dtype.kind in NUMBERS else values


def have_one_dtype(values: Iterable[Any]) -> bool:
    """False for arrays of several dtypes. As one array they would take the widest dtype, so a row's result would depend on the rows
    beside it. Python's own numbers have no dtype."""
    return len({value.dtype for value in values if hasattr(value, "dtype")}) < 2


def is_fractional(value: Any) -> bool:
    """Whether it is a number, or a list of numbers of one shape, with floating point in it."""
    return isinstance(value, (float, list)) and _is_floating(as_column([value]))


def has_fraction(column: Column) -> bool:
    return _is_floating(column) if isinstance(column, np.ndarray) else any(map(is_fractional, column))


def _is_floating(column: Column) -> bool:
    """Whether it holds floating point; an empty list does not, though numpy makes floating point of it."""
    return isinstance(column, np.ndarray) and column.dtype.kind == "f" and column.size > 0


def _floating(column: Column) -> Column:
    if isinstance(column, np.ndarray):
        return column.astype(np.float64) if _is_whole(column) else column
    entries = [as_column([value]) for value in column]
    return [entry[0].astype(np.float64).tolist() if _is_whole(entry) else value for entry, value in zip(entries, column)]


def _exact_column(values: list[Any], is_fractional: bool) -> tuple[Column, list[int]]:
    """The column, and the rows whose whole numbers it cannot hold. Without numbers beyond 64 bits, the others may stay integers."""
    column = as_column(values)
    if beyond := _rounded(column, values, 1 << 63):
        filler = next((value for i, value in enumerate(values) if i not in beyond), None)
        column = as_column([filler if i in beyond else value for i, value in enumerate(values)])
    column = _floating(column) if is_fractional else column
    return column, beyond + _rounded(column, values, EXACT)


def _rounded(column: Column, values: list[Any], least: int) -> list[int]:
    """The rows with whole numbers of at least `least` that floating point has changed."""
    if not isinstance(column, np.ndarray) or column.dtype != np.float64 or not column.size:
        return []
    with np.errstate(invalid="ignore"):
        large = np.flatnonzero((np.abs(column) >= least).reshape(len(column), -1).any(axis=1))
    return [i for i in large.tolist() if _is_rounded(values[i], least)]


def _is_rounded(value: Any, least: int) -> bool:
    if isinstance(value, list):
        return any(_is_rounded(item, least) for item in value)
    return type(value) is int and abs(value) >= least and not is_held_by_float(value)


def _is_whole(column: Column) -> bool:
    return isinstance(column, np.ndarray) and column.dtype.kind in "iu"
