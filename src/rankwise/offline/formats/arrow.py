"""Arrow files, in the file or the streaming format."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rankwise.offline.addresses import Address, Place
from rankwise.offline.columns import is_number
from rankwise.offline.format import Format, Parts, Source
from rankwise.offline.identity import file_identity
from rankwise.offline.lazy import pa
from rankwise.offline.row_batches import Batch, Selection
from rankwise.offline.table_reading import batches_of_tables, chosen_of, names_of, plain, rows_from
from rankwise.offline.table_writing import arrow_errors_as_findings, tables_of

_PIECE_BYTES = 16 << 20


class ArrowSource(Source):
    """The file is mapped, and a few megabytes at a time are copied out of it. A later look at the mapping itself would end this process
    (SIGBUS) if another process had cut the file short meanwhile."""

    def __init__(self, path: Place, selection: Selection) -> None:
        self._path = path
        with _open(path) as reader:
            self._chosen = chosen_of(reader.schema, selection, path)
            # counted in the headers of the record batches; a stream would have to be read, and old versions of pyarrow cannot count
            self.total = int(reader.count_rows()) if hasattr(reader, "count_rows") else None
        self.identity = file_identity(path)
        self._sound: set[int] = set()  # record batches that were checked

    def batches(self, size: int, first_row: int = 0, position: int | None = None) -> Iterator[Batch]:
        return batches_of_tables(self._tables(first_row), self._chosen, size, first_row)

    def _tables(self, first_row: int) -> Iterator[Any]:
        if isinstance(self._path, Address):
            yield from self._record_batches(first_row, lambda: None)
            return
        with self._path.open("rb") as file:
            nbytes = os.fstat(file.fileno()).st_size

            def check_length() -> None:
                if os.fstat(file.fileno()).st_size < nbytes:
                    raise EOFError("it has become shorter since it was opened")

            for table in self._record_batches(first_row, check_length):
                rows = max(1, _PIECE_BYTES * table.num_rows // max(1, table.nbytes))
                for start in range(0, table.num_rows, rows):
                    check_length()
                    yield _copied(table.slice(start, rows))

    def _record_batches(self, first_row: int, check_length: Callable[[], None]) -> Iterator[Any]:
        names = names_of(self._chosen)
        with _open(self._path) as reader:
            count = getattr(reader, "num_record_batches", None)
            tables = reader if count is None else map(reader.get_batch, range(count))
            check_length()
            for number, table in enumerate(rows_from(first_row, tables)):
                columns = [table.column(name) for name in names]
                if number not in self._sound and table.num_rows:
                    _check_sound(columns)
                    self._sound.add(number)
                yield pa.RecordBatch.from_arrays(columns, names)
                check_length()


def _copied(table: Any) -> Any:
    """A copy of these rows alone. Texts and bytes are made plain first, because views would bring all their neighbours along."""
    arrays = [plain(column) for column in table.columns]
    plainly = pa.RecordBatch.from_arrays(arrays, table.schema.names)
    written = pa.BufferOutputStream()
    with pa.ipc.new_stream(written, plainly.schema) as writer:
        writer.write_batch(plainly)
    return pa.ipc.open_stream(written.getvalue()).read_next_batch()


def _check_sound(columns: list[Any]) -> None:
    """Raise ArrowInvalid if the data is damaged. Arrow trusts the offsets of texts and lists in a file, and a wrong one would end the
    process. The texts themselves are checked later, row by row."""
    for column in columns:
        try:
            if not is_number(column.type):
                column.validate(full=True)
        except pa.ArrowInvalid as error:
            if "UTF8" not in str(error):
                raise


def _open(path: Place) -> Any:
    """A reader of all columns: choosing some here would make Arrow read the rest as well, instead of mapping it."""
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
