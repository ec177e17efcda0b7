"""JSON Lines and CSV: text, line by line. A line that cannot be read is one failed row."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rankwise.errors import UnreadableInput
from rankwise.predict.batches import Batch, Selection, as_column
from rankwise.predict.sources.source import file_identity

_SAMPLE = 100  # rows that decide whether a CSV column holds numbers
_MAX_LINE = 64 << 20

Row = dict[str, Any] | str  # the row's values, or why it cannot be read


class JsonLinesSource:
    """One JSON object per line. The position behind each batch is a byte offset, so resuming does not read from the start."""

    def __init__(self, path: Path, selection: Selection) -> None:
        self._path = path
        first = next((row for row, _ in self._rows(0) if isinstance(row, dict)), {})
        self._chosen = selection.of(list(first), path.name)
        self.total: int | None = None
        self.identity = file_identity(path)

    def batches(self, size: int, first_row: int = 0, position: int | None = None) -> Iterator[Batch]:
        rows = self._rows(position or 0)
        if position is None:
            for _ in range(first_row):
                next(rows, None)
        return gathered(rows, size, first_row, self._chosen)

    def _rows(self, position: int) -> Iterator[tuple[Row, int]]:
        with self._path.open("rb") as file:
            file.seek(position)
            while line := file.readline(_MAX_LINE):
                position += len(line)
                if line.strip():
                    yield _parsed(line), position


class CsvSource:
    """Rows under a header line. Numbers are numbers where most of the first rows of a column are; `.tsv` has tabs."""

    def __init__(self, path: Path, selection: Selection) -> None:
        self._path = path
        self._delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
        with path.open("rb") as file:
            line = file.readline(_MAX_LINE)
            self._header = _fields(line, self._delimiter) if line.strip() else []
            self._start = len(line)
        if not self._header:
            raise UnreadableInput(f"{path} has no header line", next=("its first line names the columns",))
        self._chosen = selection.of(self._header, path.name)
        self._kinds = self._find_kinds()
        self.total: int | None = None
        self.identity = file_identity(path)

    def batches(self, size: int, first_row: int = 0, position: int | None = None) -> Iterator[Batch]:
        rows = self._rows(self._start if position is None else position)
        if position is None:
            for _ in range(first_row):
                next(rows, None)
        return gathered(rows, size, first_row, self._chosen)

    def _rows(self, position: int) -> Iterator[tuple[Row, int]]:
        for fields, end in self._records(position):
            yield self._typed(fields), end

    def _records(self, position: int) -> Iterator[tuple[list[str], int]]:
        """A record may have line breaks inside quotes: it goes on until its quotes are closed."""
        with self._path.open("rb") as file:
            file.seek(position)
            record = b""
            while line := file.readline(_MAX_LINE):
                record += line
                if record.count(b'"') % 2 and len(record) < _MAX_LINE:
                    continue
                position += len(record)
                if record.strip():
                    yield _fields(record, self._delimiter), position
                record = b""
            if record.strip():
                yield _fields(record, self._delimiter), position + len(record)

    def _typed(self, fields: list[str]) -> Row:
        if len(fields) != len(self._header):
            return f"{len(fields)} fields, the header has {len(self._header)}"
        row: dict[str, Any] = {}
        for name, kind, text in zip(self._header, self._kinds, fields):
            try:
                row[name] = kind(text)
            except ValueError:
                return f"{text[:100]!r} in column {name!r}, where numbers are"
        return row

    def _find_kinds(self) -> list[Callable[[str], Any]]:
        sample = [fields for (fields, _), _ in zip(self._records(self._start), range(_SAMPLE)) if len(fields) == len(self._header)]
        return [_kind_of([fields[i] for fields in sample], name in self._chosen[0]) for i, name in enumerate(self._header)]


def gathered(rows: Iterator[tuple[Row, int]], size: int, first_row: int, chosen: tuple[list[str], list[str]]) -> Iterator[Batch]:
    """Rows as batches of columns, with those that cannot be read set aside."""
    held: list[Row] = []
    end = 0
    for row, end in rows:
        held.append(row)
        if len(held) == size:
            yield _batch(held, first_row, end, chosen)
            first_row, held = first_row + size, []
    if held:
        yield _batch(held, first_row, end, chosen)


def _batch(rows: list[Row], first_row: int, end: int, chosen: tuple[list[str], list[str]]) -> Batch:
    broken: dict[int, str] = {}
    for i, row in enumerate(rows):
        if isinstance(row, str):
            broken[i] = row
        elif missing := [name for name in chosen[0] if name not in row]:
            broken[i] = f"it has no {missing[0]!r}"
    good = next((row for i, row in enumerate(rows) if i not in broken), None)
    columns: dict[str, Any] = {}
    for name in chosen[0]:
        # what stands in for a broken row never reaches the model; it keeps the column an array
        filler = good[name] if isinstance(good, dict) else None
        columns[name] = as_column([filler if i in broken or isinstance(row, str) else row[name] for i, row in enumerate(rows)])
    kept = {name: [row.get(name) if isinstance(row, dict) else None for row in rows] for name in chosen[1]}
    return Batch(first_row, columns, len(rows), broken, kept, end)


def _parsed(line: bytes) -> Row:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"not JSON: {str(error)[:200]}"
    return row if isinstance(row, dict) else f"a JSON {type(row).__name__}, where an object is wanted"


def _fields(record: bytes, delimiter: str) -> list[str]:
    text = record.decode("utf-8-sig", errors="replace").rstrip("\r\n")
    return next(csv.reader([text] if "\n" not in text else text.splitlines(keepends=True), delimiter=delimiter), [])


def _kind_of(texts: list[str], is_for_model: bool) -> Callable[[str], Any]:
    """What the model gets is of numbers if most of it are; the others are bad rows then. What is kept has to be so throughout."""
    whole, numbers = (sum(_is_a(kind, text) for text in texts) for kind in (int, float))
    if not texts or (numbers < len(texts) and not (is_for_model and 2 * numbers > len(texts))):
        return str
    return int if whole == numbers else float


def _is_a(kind: Callable[[str], Any], text: str) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True
