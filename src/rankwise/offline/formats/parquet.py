"""Parquet files, some megabytes at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from rankwise.offline.addresses import Address, Place
from rankwise.offline.format import Format, Parts, Source
from rankwise.offline.identity import file_identity
from rankwise.offline.lazy import pa, pq
from rankwise.offline.row_batches import Batch, Selection
from rankwise.offline.table_reading import batches_of_tables, chosen_of, names_of, rows_from
from rankwise.offline.table_writing import arrow_errors_as_findings, tables_of

_PIECE_BYTES = 16 << 20
_FEW_ROWS = 8192
_READ_BYTES = 1 << 20  # read at once from a column; without this, a whole column of a row group is read


class ParquetSource(Source):
    """One Parquet file; only the row groups and columns that are wanted are read."""

    def __init__(self, path: Place, selection: Selection) -> None:
        self._path = path
        with _open(path) as file:
            self._chosen = chosen_of(file.schema_arrow, selection, path)
            self.total = file.metadata.num_rows
        self.identity = file_identity(path)

    def batches(self, size: int, first_row: int = 0, position: int | None = None) -> Iterator[Batch]:
        return batches_of_tables(self._tables(first_row, size), self._chosen, size, first_row)

    def _tables(self, first_row: int, size: int) -> Iterator[Any]:
        names, skip = names_of(self._chosen), first_row
        most = max(_FEW_ROWS, 4 * size)  # a trial that wants few rows should not wait for many
        with _open(self._path) as file:
            for number in range(file.num_row_groups):
                group = file.metadata.row_group(number)
                if skip < group.num_rows:
                    rows = _PIECE_BYTES * group.num_rows // max(1, _nbytes(group, names))
                    pieces = file.iter_batches(batch_size=max(1, min(rows, most)), row_groups=[number], columns=names)
                    yield from rows_from(skip, pieces)
                skip = max(0, skip - group.num_rows)


def _open(path: Place) -> Any:
    return pq.ParquetFile(
        path.open_arrow() if isinstance(path, Address) else pa.OSFile(os.fsencode(path)), buffer_size=_READ_BYTES, pre_buffer=False
    )


def _nbytes(group: Any, names: list[str]) -> int:
    """The bytes of these columns. A column of structs or lists is stored as several columns with longer names."""
    wanted = tuple(f"{name}." for name in names)
    columns = map(group.column, range(group.num_columns))
    return sum(column.total_uncompressed_size for column in columns if f"{column.path_in_schema}.".startswith(wanted))


def write_parquet(parts: Parts, total: int, path: Path) -> None:
    schema, tables = tables_of(parts)
    with arrow_errors_as_findings():
        first = list(islice(tables, 1))
        repeating = [name for table in first for name in _repeating(table.slice(0, _FEW_ROWS))]
        with pa.OSFile(os.fsencode(path), "wb") as file, pq.ParquetWriter(file, schema, use_dictionary=repeating or False) as writer:
            for table in chain(first, tables):
                writer.write_table(table, row_group_size=len(table))


def _repeating(table: Any) -> list[str]:
    """The columns, by Parquet's names, that are smaller as a list of distinct values and indices into it. For values that hardly repeat, as
    in most models' outputs, such a list takes more room and most of the time of writing. The first rows decide, because they are the
    same however a job was interrupted."""
    sizes: list[dict[str, int]] = []
    for is_listed in (True, False):
        written = pa.BufferOutputStream()
        pq.write_table(table, written, use_dictionary=is_listed, compression="none")
        group = pq.read_metadata(pa.BufferReader(written.getvalue())).row_group(0)
        columns = map(group.column, range(group.num_columns))
        sizes.append({column.path_in_schema: column.total_uncompressed_size for column in columns})
    return [name for name, size in sizes[0].items() if size < sizes[1][name]]


FORMAT = Format((".parquet", ".pq"), ParquetSource, write_parquet)
