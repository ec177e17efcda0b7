"""Parquet and Arrow files, a few record batches at a time."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.errors import UsageError
from rankwise.predict.batches import Batch, Column, Selection, rebatched
from rankwise.predict.sources.source import file_identity

_PIECE_ROWS = 8192


class ParquetSource:
    """One Parquet file; only the row groups and columns that are wanted are read."""

    def __init__(self, path: Path, selection: Selection) -> None:
        self._path = path
        file = arrow("parquet").ParquetFile(path)
        self._chosen = selection.of(file.schema_arrow.names, path.name)
        self._group_rows = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
        self.total: int | None = file.metadata.num_rows
        self.identity = file_identity(path)
        file.close()

    def batches(self, size: int, first_row: int = 0, position: int | None = None) -> Iterator[Batch]:
        return rebatched(self._pieces(first_row), size, first_row, self._chosen)

    def _pieces(self, first_row: int) -> Iterator[dict[str, Column]]:
        skipped, group = 0, 0
        while group < len(self._group_rows) and skipped + self._group_rows[group] <= first_row:
            skipped, group = skipped + self._group_rows[group], group + 1
        names = list(dict.fromkeys([*self._chosen[0], *self._chosen[1]]))
        file = arrow("parquet").ParquetFile(self._path, memory_map=True)
        try:
            wanted = list(range(group, len(self._group_rows)))
            for table in file.iter_batches(batch_size=_PIECE_ROWS, row_groups=wanted, columns=names) if wanted else ():
                rest = table.slice(max(0, first_row - skipped))
                skipped += table.num_rows
                if rest.num_rows:
                    yield {name: as_numpy(rest.column(name)) for name in names}
        finally:
            file.close()


class ArrowSource:
    """An Arrow file, in the file or the streaming format, mapped."""

    def __init__(self, path: Path, selection: Selection) -> None:
        self._path = path
        with _open_arrow(path) as reader:
            self._chosen = selection.of(reader.schema.names, path.name)
        self.total: int | None = None
        self.identity = file_identity(path)

    def batches(self, size: int, first_row: int = 0, position: int | None = None) -> Iterator[Batch]:
        return rebatched(self._pieces(first_row), size, first_row, self._chosen)

    def _pieces(self, first_row: int) -> Iterator[dict[str, Column]]:
        names = list(dict.fromkeys([*self._chosen[0], *self._chosen[1]]))
        seen = 0
        with _open_arrow(self._path) as reader:
            count = getattr(reader, "num_record_batches", None)
            for table in reader if count is None else map(reader.get_batch, range(count)):
                rest = table.slice(max(0, min(first_row - seen, table.num_rows)))
                seen += table.num_rows
                if rest.num_rows:
                    yield {name: as_numpy(rest.column(name)) for name in names}


def arrow(name: str) -> Any:
    """Something of pyarrow, which is an extra."""
    try:
        importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise UsageError("Parquet and Arrow files need pyarrow", next=('pip install "rankwise[data]"',)) from None
    return getattr(importlib.import_module("pyarrow"), name)


def _open_arrow(path: Path) -> Any:
    """The file format, or the streaming one."""
    mapped = arrow("memory_map")(str(path))
    try:
        return arrow("ipc").open_file(mapped)
    except arrow("ArrowInvalid"):
        mapped.seek(0)
        return arrow("ipc").open_stream(mapped)


def as_numpy(column: Any) -> Column:
    """An Arrow array as numpy: lists of one length become further dimensions, what is no number stays a list."""
    types = arrow("types")
    kind, shape = column.type, [len(column)]
    if column.null_count:
        return column.to_pylist()
    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        if len(column) == 0:
            break
        lengths = np.asarray(column.value_lengths())
        if lengths.size == 0 or (lengths != lengths[0]).any():
            return _original(column, shape)
        shape.append(int(lengths[0]))
        column, kind = column.flatten(), kind.value_type
        if column.null_count:
            return _original(column, shape)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return column.to_numpy(zero_copy_only=False).reshape(shape)
    return _original(column, shape)


def _original(column: Any, shape: list[int]) -> Column:
    values = column.to_pylist()
    for size in reversed(shape[1:]):
        values = [values[i : i + size] for i in range(0, len(values), size)] if size else values
    return list(values)
