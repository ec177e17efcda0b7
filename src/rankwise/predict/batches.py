"""Batches of rows: columns of equal length, as arrays or as lists of whatever no array can hold."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rankwise.errors import UsageError

# np.ndarray, a list with one entry per row, or (only where it is kept) a pyarrow Array, whose type is that of the input's own schema
Column = Any


@dataclass(frozen=True)
class Batch:
    """Consecutive rows of the input. `broken` are rows that could not even be read: {index in the batch: why}."""

    first_row: int
    columns: dict[str, Column]
    length: int
    broken: dict[int, str] = field(default_factory=dict)
    kept: dict[str, Column] = field(default_factory=dict)  # not for the model, carried over to the output
    position: int | None = None  # where the reader stands behind this batch, for readers that cannot count rows

    def cut(self, start: int, stop: int) -> Batch:
        columns, kept = ({name: column[start:stop] for name, column in part.items()} for part in (self.columns, self.kept))
        broken = {row - start: why for row, why in self.broken.items() if start <= row < stop}
        return Batch(self.first_row + start, columns, min(stop, self.length) - start, broken, kept)


@dataclass(frozen=True)
class Selection:
    """Which columns the model gets, in this order (all that are left if none are named), and which go straight to the output."""

    columns: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()

    def of(self, names: list[str], where: str) -> tuple[list[str], list[str]]:
        """Both lists, for a file that has these columns; UsageError for one it has not."""
        missing = [name for name in (*self.columns, *self.keep) if name not in names]
        if missing:
            raise UsageError(
                f"{where} has no column {missing[0]!r}", why=f"it has {', '.join(names[:20])}" if names else "there is no row in it"
            )
        return list(self.columns) or [name for name in names if name not in self.keep], list(self.keep)


def taken(columns: dict[str, Column], rows: list[int]) -> dict[str, Column]:
    """Only these rows of all columns."""
    return {name: _taken(column, rows) for name, column in columns.items()}


def is_arrow(column: Column) -> bool:
    """Without importing pyarrow: whoever has such an array has imported it."""
    return hasattr(column, "to_pylist")


def _taken(column: Column, rows: list[int]) -> Column:
    if isinstance(column, np.ndarray):
        return column[rows]
    return column.take(np.asarray(rows, np.int64)) if is_arrow(column) else [column[row] for row in rows]


def split(piece: dict[str, Column], chosen: tuple[list[str], list[str]]) -> tuple[dict[str, Column], dict[str, Column]]:
    return {name: piece[name] for name in chosen[0]}, {name: piece[name] for name in chosen[1]}


def joined(columns: list[Column]) -> Column:
    """One column out of several pieces of it."""
    if len(columns) == 1:
        return columns[0]
    if all(isinstance(column, np.ndarray) for column in columns) and len({(column.shape[1:], column.dtype) for column in columns}) == 1:
        return np.concatenate(columns)
    if all(is_arrow(column) for column in columns):
        return sys.modules["pyarrow"].concat_arrays(columns)
    return [value for column in columns for value in column]


def rebatched(pieces: Iterable[dict[str, Column]], size: int, first_row: int, chosen: tuple[list[str], list[str]]) -> Iterator[Batch]:
    """Pieces of any length as batches of `size` rows; only the last one is shorter."""
    held: list[dict[str, Column]] = []
    count = 0
    for piece in pieces:
        length = len(next(iter(piece.values()))) if piece else 0
        at = 0
        while length - at >= size - count:
            held.append({name: column[at : at + size - count] for name, column in piece.items()})
            at += size - count
            columns, kept = split(_join_all(held), chosen)
            yield Batch(first_row, columns, size, kept=kept)
            first_row, held, count = first_row + size, [], 0
        if at < length:
            held.append({name: column[at:] for name, column in piece.items()})
            count += length - at
    if count:
        columns, kept = split(_join_all(held), chosen)
        yield Batch(first_row, columns, count, kept=kept)


def _join_all(pieces: list[dict[str, Column]]) -> dict[str, Column]:
    return {name: joined([piece[name] for piece in pieces]) for name in pieces[0]}


def as_column(values: list[Any]) -> Column:
    """Values of one column as an array where they are numbers, or lists of numbers of one shape; otherwise the list itself."""
    if not values or isinstance(values[0], (str, bytes, dict)) or values[0] is None:
        return values
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths
        return values
    if array.dtype == object or array.dtype.kind in "USV":
        return values
    return array.astype(np.float32) if array.dtype == np.float64 and not isinstance(values[0], np.ndarray) else array
