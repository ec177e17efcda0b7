"""Record batches of a Parquet or Arrow file as batches for the model."""

from __future__ import annotations

from collections.abc import Container, Iterator
from functools import cache
from typing import Any

import numpy as np

from rankwise.errors import UsageError
from rankwise.offline.addresses import Place
from rankwise.offline.columns import has_type, is_lists, is_number, is_tensors, tensors, with_inner
from rankwise.offline.lazy import pa, pc
from rankwise.offline.row_batches import Batch, Chosen, Column, Selection, joined


def names_of(chosen: Chosen) -> list[str]:
    return list(dict.fromkeys([*chosen[0], *chosen[1]]))


def chosen_of(schema: Any, selection: Selection, path: Place) -> Chosen:
    chosen = selection.of(schema.names, path.name)
    for name in chosen[0]:
        kind = schema.field(name).type
        if has_type(kind, pa.types.is_temporal):
            steps = (f"keep it for the output with --keep {name}, or name the model's columns with --columns",)
            raise UsageError(f"column {name!r} of {path.name} is {kind}, which torch has no tensors of", next=steps)
    return chosen


def rows_from(first_row: int, tables: Iterator[Any]) -> Iterator[Any]:
    """The record batches without their first `first_row` rows."""
    for table in tables:
        yield table.slice(min(first_row, table.num_rows))
        first_row = max(0, first_row - table.num_rows)


def batches_of_tables(tables: Iterator[Any], chosen: Chosen, size: int, first_row: int) -> Iterator[Batch]:
    """Rows are converted after they were cut into batches, so a batch depends on its own rows only, and little of a file is held."""
    for table in _rebatched(tables, size):
        arrays = {name: plain(joined(table.column(name).chunks)) for name in names_of(chosen)}
        broken: dict[int, str] = {}
        for name, array in arrays.items():
            broken |= _not_text(name, array)
        columns = {name: as_numpy(arrays[name], broken) for name in chosen[0]}
        kept = {name: _own(arrays[name]) for name in chosen[1]}
        dtypes = {name: _dtype_within(arrays[name].type) for name, column in columns.items() if isinstance(column, list)}
        yield Batch(first_row, columns, len(table), broken, kept, dtypes=dtypes)
        first_row += len(table)


def _dtype_within(kind: Any) -> str:
    """Of numbers, and of numbers in lists; empty for anything else."""
    while is_lists(kind):
        kind = kind.value_type
    return np.dtype(kind.to_pandas_dtype()).name if is_number(kind) else ""


def _rebatched(tables: Iterator[Any], size: int) -> Iterator[Any]:
    """Record batches of any length as tables of `size` rows; only the last one has fewer. Nothing is copied."""
    held: list[Any] = []  # joined only when they fill a table, because joining costs as much as there are pieces
    count = 0
    for piece in map(pa.table, tables):
        if len(piece):
            held.append(piece)
            count += len(piece)
        del piece  # let go of it before more is read
        if count < size:
            continue
        rest = pa.concat_tables(held)
        while len(rest) >= size:
            yield rest.slice(0, size)
            rest = rest.slice(size)
        held, count = [rest] if len(rest) else [], len(rest)
        del rest
    if held:
        yield pa.concat_tables(held)


def _own(column: Any) -> Any:
    """A copy of a slice, because Arrow would store bits of its neighbours as well, and these depend on where reading began."""
    is_bare = pa.types.is_primitive(column.type) and not pa.types.is_boolean(column.type) and not column.null_count
    return column if is_bare else column.take(pa.array(np.arange(len(column))))


def _not_text(name: str, column: Any) -> dict[int, str]:
    """Rows with a text that is not UTF-8. Arrow does not check that on reading, so the job would fail where the text is used."""
    if not _has_text(column.type):
        return {}
    try:
        (_own(column) if pa.types.is_nested(column.type) else column).validate(full=True)  # of a nested slice, Arrow would look at all rows
        return {}
    except pa.ArrowInvalid:
        return {i: f"column {name!r} is not UTF-8" for i, value in enumerate(column) if not _is_readable(value)}


@cache
def _has_text(kind: Any) -> bool:
    return has_type(kind, lambda one: pa.types.is_string(one) or pa.types.is_large_string(one))


def _is_readable(value: Any) -> bool:
    try:
        value.as_py()
    except UnicodeDecodeError:
        return False
    return True


def plain(column: Any) -> Any:
    """The same values in Arrow's plain layout, instead of as dictionaries, runs or views."""
    if is_number(column.type):
        return column
    if pa.types.is_dictionary(column.type):
        return plain(column.dictionary).take(column.indices)  # Arrow cannot decode one whose texts are views
    if pa.types.is_run_end_encoded(column.type):
        return plain(pc.run_end_decode(column))
    kind = _plain_type(column.type)
    return column if kind == column.type else column.cast(kind)


@cache
def _plain_type(kind: Any) -> Any:
    """The type with plain texts and bytes in it. Lists that are views stay, because their rows can be picked as they are."""
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary()
    return with_inner(kind, _plain_type)


def as_numpy(column: Any, broken: Container[int] = ()) -> Column:
    """A plain Arrow array as numpy: lists of one length become further dimensions, anything but numbers stays a list of Python values.

    Values of rows that are broken are None in such a list.
    """
    if is_number(column.type) and not column.null_count:
        return column.to_numpy(zero_copy_only=False)
    if is_tensors(column) and not column.null_count:
        return column.to_numpy_ndarray()
    values = column.storage if hasattr(column, "storage") else column
    shape = [len(values)]
    while is_lists(values.type):
        lengths = np.unique(np.asarray(values.value_lengths()))
        if values.null_count or len(lengths) > 1:
            return _listed(column, broken)
        shape.append(int(lengths[0]) if len(lengths) else 0)
        values = values.flatten()
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.float64())
    if values.null_count or not is_number(values.type):
        return _listed(column, broken)
    return values.to_numpy(zero_copy_only=False).reshape(shape)


def _listed(column: Any, broken: Container[int]) -> list[Any]:
    """The column as a list of Python values. Decimals become floating point, as they do in a column without missing values."""
    if is_tensors(column):
        return [None if i in broken else value for i, value in enumerate(tensors(column))]
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    return [None if i in broken else value.as_py() for i, value in enumerate(column)] if broken else list(column.to_pylist())
