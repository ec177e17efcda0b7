"""Arrow files, in the file or the streaming format."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankwise.offline.addresses import Address, Place
from rankwise.offline.columns import is_number
from rankwise.offline.format import Format, Parts, Source
from rankwise.offline.identity import file_identity
from rankwise.offline.lazy import pa
from rankwise.offline.row_batches import Batch, Selection
from rankwise.offline.table_reading import batches_of_tables, chosen_of, names_of, rows_from
from rankwise.offline.table_writing import arrow_errors_as_findings, tables_of


class ArrowSource(Source):
    """The file is mapped, so a batch is read when it is used."""

    def __init__(self, path: Place, selection: Selection) -> None:
        self._path = path
        with _open(path) as reader:
            self._chosen = chosen_of(reader.schema, selection, path)
            # from the headers of the record batches; a stream would have to be read, and old versions of pyarrow cannot tell
            self.total = int(reader.count_rows()) if hasattr(reader, "count_rows") else None
        self.identity = file_identity(path)
        self._sound: set[int] = set()  # record batches that were looked at

    def batches(self, size: int, first_row: int = 0, position: int | None = None) -> Iterator[Batch]:
        return batches_of_tables(self._tables(first_row), self._chosen, size, first_row)

    def _tables(self, first_row: int) -> Iterator[Any]:
        with _open(self._path) as reader:
            count = getattr(reader, "num_record_batches", None)
            tables = reader if count is None else map(reader.get_batch, range(count))
            for number, table in enumerate(rows_from(first_row, tables)):
                if number not in self._sound and table.num_rows:
                    _check_sound([table.column(name) for name in names_of(self._chosen)])
                    self._sound.add(number)
                yield table


def _check_sound(columns: list[Any]) -> None:
    """Raises ArrowInvalid where it is damaged: Arrow believes what a file says of where a text or a list begins, and reading it there
    would end the process. What a text holds is looked at later, row by row."""
    for column in columns:
        try:
            if not is_number(column.type):
                column.validate(full=True)
        except pa.ArrowInvalid as error:
            if "UTF8" not in str(error):
                raise


def _open(path: Place) -> Any:
    """All columns, for to choose some here would have the rest read as well, not mapped."""
    mapped = path.open_arrow() if isinstance(path, Address) else pa.memory_map(os.fsencode(path))
    try:
        return pa.ipc.open_file(mapped)
    except pa.ArrowInvalid:
        mapped.seek(0)
        return pa.ipc.open_stream(mapped)


def write_arrow(parts: Parts, total: int, path: Path) -> None:
    schema, tables = tables_of(parts)
    with arrow_errors_as_findings(), pa.OSFile(os.fsencode(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for table in tables:
            writer.write_table(table)


FORMAT = Format((".arrow", ".feather", ".ipc"), ArrowSource, write_arrow)
