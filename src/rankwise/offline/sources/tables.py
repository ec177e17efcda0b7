"""Parquet and Arrow files, some megabytes at a time."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Container, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.errors import UsageError
from rankwise.offline.batches import Batch, Column, Selection, rebatched
from rankwise.offline.sources.file_identity import file_identity

_PIECE_ROWS, _FEW_ROWS = 65536, 8192
_PIECE_BYTES = 16 << 20
_READ_BYTES = 1 << 20  # at once from a column of a Parquet file; without this it would be the whole column of a row group

Chosen = tuple[list[str], list[str]]


class ParquetSource:
    """One Parquet file; only the row groups and columns that are wanted are read."""

    is_recognisable = True

    def __init__(self, path: Path, selection: Selection) -> None:
        self._path = path
        with _open_parquet(path) as file:
            self._chosen = _chosen_of(file.schema_arrow, selection, path)
            groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
            share = _wanted_share(groups[0], _names(self._chosen)) if groups else 1.0
            self._piece_rows = [_piece_rows(share * group.total_byte_size, group.num_rows) for group in groups]
            self._group_rows = [group.num_rows for group in groups]
            self.total: int | None = file.metadata.num_rows
        self.identity = file_identity(path)

    def batches(self, size: int, first_row: int = 0, position: int | None = None) -> Iterator[Batch]:
        return _batches(self._tables(first_row, size), self._chosen, size, first_row)

    def _tables(self, first_row: int, size: int) -> Iterator[Any]:
        names = _names(self._chosen)
        skip = first_row
        most = max(_FEW_ROWS, 4 * size)  # who wants few rows, to try something, does not wait for many
        with _open_parquet(self._path) as file:
            for group, rows in enumerate(self._group_rows):
                if skip >= rows:
                    skip -= rows
                    continue
                for table in file.iter_batches(batch_size=min(self._piece_rows[group], most), row_groups=[group], columns=names):
                    yield table.slice(min(skip, table.num_rows))
                    skip = max(0, skip - table.num_rows)


class ArrowSource:
    """An Arrow file, in the file or the streaming format, mapped."""

    is_recognisable = True

    def __init__(self, path: Path, selection: Selection) -> None:
        self._path = path
        with _open_arrow(path) as reader:
            self._chosen = _chosen_of(reader.schema, selection, path)
            self.total: int | None = _count(reader)
        self.identity = file_identity(path)

    def batches(self, size: int, first_row: int = 0, position: int | None = None) -> Iterator[Batch]:
        return _batches(self._tables(first_row), self._chosen, size, first_row)

    def _tables(self, first_row: int) -> Iterator[Any]:
        skip = first_row
        with _open_arrow(self._path) as reader:
            count = getattr(reader, "num_record_batches", None)
            for table in reader if count is None else map(reader.get_batch, range(count)):
                yield table.slice(min(skip, table.num_rows))
                skip = max(0, skip - table.num_rows)


@cache
def arrow(name: str) -> Any:
    """Something of pyarrow, which is an extra."""
    try:
        importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise UsageError("Parquet and Arrow files need pyarrow", next=('pip install "rankwise[data]"',)) from None
    return getattr(importlib.import_module("pyarrow"), name)


def _open_parquet(path: Path) -> Any:
    return arrow("parquet").ParquetFile(path, buffer_size=_READ_BYTES, pre_buffer=False)


def _open_arrow(path: Path) -> Any:
    """The file format, or the streaming one; all columns, for to choose some here would have the rest read as well, not mapped."""
    mapped = arrow("memory_map")(str(path))
    try:
        return arrow("ipc").open_file(mapped)
    except arrow("ArrowInvalid"):
        mapped.seek(0)
        return arrow("ipc").open_stream(mapped)


def _count(reader: Any) -> int | None:
    """The rows of a file, from the headers of its record batches. A stream would have to be read; old versions of pyarrow cannot tell."""
    return int(reader.count_rows()) if hasattr(reader, "count_rows") else None


def _names(chosen: Chosen) -> list[str]:
    return list(dict.fromkeys([*chosen[0], *chosen[1]]))


def _chosen_of(schema: Any, selection: Selection, path: Path) -> Chosen:
    chosen = selection.of(schema.names, path.name)
    for name in chosen[0]:
        kind = schema.field(name).type
        if _has(kind, arrow("types").is_temporal):
            steps = (f"keep it for the output with --keep {name}, or name the model's columns with --columns",)
            raise UsageError(f"column {name!r} of {path.name} is {kind}, of which there are no tensors", next=steps)
    return chosen


def _has(kind: Any, test: Callable[[Any], bool]) -> bool:
    """Whether a type, or one of those within it, is such a one."""
    inner = [kind.value_type] if arrow("types").is_dictionary(kind) else [kind.field(i).type for i in range(kind.num_fields)]
    return test(kind) or any(_has(each, test) for each in inner)


def _wanted_share(group: Any, names: list[str]) -> float:
    """What part of a row group's bytes is of these columns; a column of structs, or of lists, is stored as several with longer names."""
    wanted = set(names)
    nbytes = 0
    for column in (group.column(i) for i in range(group.num_columns)):
        parts = column.path_in_schema.split(".")
        if any(".".join(parts[:count]) in wanted for count in range(1, len(parts) + 1)):
            nbytes += column.total_uncompressed_size
    return float(nbytes / max(group.total_byte_size, 1))


def _piece_rows(nbytes: float, rows: int) -> int:
    return max(1, min(_PIECE_ROWS, int(_PIECE_BYTES * rows / max(nbytes, 1))))


def _batches(tables: Iterator[Any], chosen: Chosen, size: int, first_row: int) -> Iterator[Batch]:
    """Record batches as batches. Converted last, so that what a batch is made of depends on its own rows, and no more of a file is."""
    pieces = (Batch(0, {name: table.column(name) for name in _names(chosen)}, table.num_rows) for table in tables)
    for batch in rebatched(pieces, size, first_row):
        arrays = {name: plain(column) for name, column in batch.columns.items()}
        broken: dict[int, str] = {}
        for name, array in arrays.items():
            broken |= _not_text(name, array)
        columns = {name: as_numpy(arrays[name], broken) for name in chosen[0]}
        yield replace(batch, columns=columns, broken=broken, kept={name: arrays[name] for name in chosen[1]})


def _not_text(name: str, column: Any) -> dict[int, str]:
    """Rows with a text that is not UTF-8, of which files say nothing: the row fails here, or the job where the text is used."""
    types = arrow("types")
    if not _has_text(column.type):
        return {}
    # a copy of these rows: of nested values, all would be looked at that they are a slice of
    own = column.take(np.arange(len(column))) if types.is_nested(column.type) else column
    try:
        own.validate(full=True)
        return {}
    except arrow("ArrowInvalid"):
        return {i: f"column {name!r} is not UTF-8" for i, value in enumerate(column) if not _is_readable(value)}


@cache
def _has_text(kind: Any) -> bool:
    types = arrow("types")
    return _has(kind, lambda one: types.is_string(one) or types.is_large_string(one))


def _is_readable(value: Any) -> bool:
    try:
        value.as_py()
    except UnicodeDecodeError:
        return False
    return True


def plain(column: Any) -> Any:
    """The same values in the usual layout: dictionaries, runs and views are ways to store them, and not all can be picked from."""
    if is_number(column.type):
        return column
    types = arrow("types")
    if types.is_dictionary(column.type):
        return plain(column.dictionary_decode())
    if types.is_run_end_encoded(column.type):
        return plain(importlib.import_module("pyarrow.compute").run_end_decode(column))
    kind = _without_views(column.type)
    return column if kind == column.type else column.cast(kind)


def _without_views(kind: Any) -> Any:
    """The type with plain texts and bytes in it. Of lists that are views themselves, rows can be picked as they are."""
    types = arrow("types")
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return arrow("large_string" if types.is_string_view(kind) else "large_binary")()
    return with_inner(kind, _without_views)


def with_inner(kind: Any, changed: Callable[[Any], Any]) -> Any:
    """The type with others in it, where it is one of lists, structs or maps."""
    types = arrow("types")
    if types.is_list(kind) or types.is_large_list(kind):
        return arrow("list_" if types.is_list(kind) else "large_list")(kind.value_field.with_type(changed(kind.value_type)))
    if types.is_fixed_size_list(kind):
        return arrow("list_")(kind.value_field.with_type(changed(kind.value_type)), kind.list_size)
    if types.is_struct(kind):
        return arrow("struct")([field.with_type(changed(field.type)) for field in kind])
    if types.is_map(kind):
        key, item = (field.with_type(changed(field.type)) for field in (kind.key_field, kind.item_field))
        return arrow("map_")(key, item, keys_sorted=kind.keys_sorted)
    return kind


def is_lists(kind: Any) -> bool:
    types = arrow("types")
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def is_tensors(column: Any) -> bool:
    """Whether it is an Arrow array of tensors of one shape."""
    return hasattr(column, "to_numpy_ndarray")


def tensors(column: Any) -> list[Any]:
    """One array per row, None for a null."""
    if not column.null_count:
        return list(column.to_numpy_ndarray())
    whole = iter(column.drop_null().to_numpy_ndarray())
    return [next(whole) if valid else None for valid in column.is_valid().to_pylist()]


def as_numpy(column: Any, broken: Container[int] = ()) -> Column:
    """A plain Arrow array as numpy: lists of one length become further dimensions, what is no number stays a list of Python's values.

    Values of rows that are broken are None in such a list.
    """
    if is_number(column.type) and not column.null_count:
        return column.to_numpy(zero_copy_only=False)
    types = arrow("types")
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
    if types.is_decimal(values.type):
        values = values.cast(arrow("float64")())
    if values.null_count or not is_number(values.type):
        return _listed(column, broken)
    return values.to_numpy(zero_copy_only=False).reshape(shape)


@cache
def is_number(kind: Any) -> bool:
    """Asked of every column of every batch, so it is remembered."""
    types = arrow("types")
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _listed(column: Any, broken: Container[int]) -> list[Any]:
    """Decimals are numbers here as well, so that a missing one beside them does not make them something else."""
    if is_tensors(column):
        return [None if i in broken else value for i, value in enumerate(tensors(column))]
    if arrow("types").is_decimal(column.type):
        column = column.cast(arrow("float64")())
    return [None if i in broken else value.as_py() for i, value in enumerate(column)] if broken else list(column.to_pylist())
