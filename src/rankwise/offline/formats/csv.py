"""CSV and TSV, as Python's csv module reads them. A record that cannot be read is one failed row."""

from __future__ import annotations

import codecs
import csv
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.errors import UnreadableInput
from rankwise.offline.addresses import Place
from rankwise.offline.format import Format, Parts
from rankwise.offline.parts import column_names
from rankwise.offline.row_batches import Column, Row, Selection
from rankwise.offline.text_lines import MAX_LINE, TOO_LONG, LinesSource, entries, json_text, plain_rows
from rankwise.offline.values import EXACT, is_held_by_float, is_utf8
from rankwise.offline.workspace import PredictError

_SAMPLE = 100  # rows that decide whether a column holds numbers
_BARE_CR = "\ud800"  # stands for a \r within a line, which the csv module refuses; decoded text never has this character

Fields = list[str] | Row  # the fields of a record, or the failed row that it becomes
Line = tuple[bytes | None, int]  # a line, and the byte behind it; None: the line is too long


class CsvSource(LinesSource):
    """Rows under a header line; `.tsv` has tabs. Only wanted columns are looked at, and kept columns stay text."""

    def __init__(self, path: Place, selection: Selection) -> None:
        super().__init__(path)
        self._delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
        header, self._start = next(self._records(0), ([], 0))
        if isinstance(header, Row) or not header:
            why = header.why if isinstance(header, Row) else ""
            raise UnreadableInput(f"{path} has no header line", why=why, next=("its first line names the columns",))
        if not is_utf8("".join(header)):
            raise UnreadableInput(f"the header line of {path} is not UTF-8", next=(_conversion("".join(header)),))
        if "\r" in "".join(header).replace("\r\n", ""):
            steps = (f"convert it, as with: tr '\\r' '\\n' < {path.name}",)
            raise UnreadableInput(f"the header line of {path} has a CR in it: its lines seem to end with CR only", next=steps)
        others = [mark for mark in ",;\t|" if mark in header[0] and mark != self._delimiter]
        if len(header) == 1 and others and header[0] not in (*selection.columns, *selection.keep):
            why = f"it is one name, {header[0][:100]!r}"
            ways = ("save it with commas, or as .tsv with tabs; decimals with a point", "if it is one name: --columns")
            raise UnreadableInput(f"the header line of {path} seems to have {others[0]!r} between its names", why=why, next=ways)
        self._width = len(header)
        self._chosen = selection.of(header, path.name)
        places = {name: at for at, name in enumerate(header)}
        self._at = {name: places[name] for part in self._chosen for name in part}
        self._kinds = self._find_kinds()
        self._known = frozenset(name for name, kind in self._kinds.items() if kind is not _number)

    def _rows(self, position: int) -> Iterator[tuple[Row, int]]:
        for fields, end in self._records(position):
            yield (fields if isinstance(fields, Row) else self._row(fields)), end

    def _records(self, position: int) -> Iterator[tuple[Fields, int]]:
        """Each record, and the byte behind it; blank lines are skipped. If a quote is never closed, its line is one failed row, and reading
        goes on at the next line."""
        csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE))  # its own limit is against attacks; our limit is that of a record
        while True:
            lines, taken = self._lines(position), list[Line]()
            reader = csv.reader(_texts(lines, taken), delimiter=self._delimiter, strict=True)
            while (fields := self._record(reader, lines, taken)) is not None:
                if fields:
                    yield fields, taken[-1][1]
            line, position = taken[0]
            if line == b"":
                return
            yield TOO_LONG if line is None else Row(why="a quote at the start of a field that is not closed at the end of one"), position

    def _record(self, reader: Iterator[list[str]], lines: Iterator[Line], taken: list[Line]) -> list[str] | None:
        """The next record; None if it cannot be read, or if the file ends first.

        A closing quote with text behind it is read leniently if it is in the record's first line. In a later line it rather begins another
        field, and the quote before was never closed.
        """
        taken.clear()
        fields = _parsed(reader)
        if fields is None and len(taken) == 1 and taken[0][0] is not None:
            again = taken.copy()
            taken.clear()
            fields = _parsed(csv.reader(_texts(chain(again, lines), taken), delimiter=self._delimiter))
        return fields if taken[-1][0] != b"" else None

    def _row(self, fields: list[str]) -> Row:
        if len(fields) != self._width:
            return Row(why=f"{len(fields)} fields, the header has {self._width}")
        texts = {name: fields[at] for name, at in self._at.items()}
        for name, text in texts.items():
            if not is_utf8(text):
                return Row(why=f"column {name!r} is not UTF-8: {text[:100].encode(errors='surrogateescape')!r}")
        values: dict[str, object] = {}
        for name, kind in self._kinds.items():
            try:
                values[name] = kind(texts[name])
            except _Rounded:
                return Row(why=f"{texts[name][:100]!r} in column {name!r}, of which float64 would make {float(texts[name]):.17g}")
            except ValueError:
                return Row(why=f"{texts[name][:100]!r} in column {name!r}, where numbers are")
        return Row(values, texts)

    def _find_kinds(self) -> dict[str, Callable[[str], object]]:
        sample = [fields for fields, _ in islice(self._records(self._start), _SAMPLE)]
        whole = [fields for fields in sample if isinstance(fields, list) and len(fields) == self._width]
        return {name: _kind_of([fields[self._at[name]] for fields in whole]) for name in self._chosen[0]}


def _texts(lines: Iterable[Line], taken: list[Line]) -> Iterator[str]:
    """The lines as text, of which the csv module takes as many as a record has. `taken` gets each line, and an empty one at the end."""
    for line, end in lines:
        taken.append((line, end))
        if line is None or end - taken[0][1] > MAX_LINE:
            raise csv.Error("more bytes than can be meant")
        text = line.decode("utf-8-sig" if end == len(line) else "utf-8", "surrogateescape")
        body = text.rstrip("\r\n")
        yield body.replace("\r", _BARE_CR) + text[len(body) :] if "\r" in body else text
    taken.append((b"", 0))


def _parsed(reader: Iterator[list[str]]) -> list[str] | None:
    try:
        fields = next(reader, [])
    except csv.Error:
        return None
    return [field.replace(_BARE_CR, "\r") for field in fields] if _BARE_CR in "".join(fields) else fields


def _conversion(header: str) -> str:
    """The command that makes UTF-8 of a file, guessed from the first bytes of its header line."""
    start = header.encode(errors="surrogateescape")
    if start.startswith(b"\x1f\x8b"):
        return "it is compressed: gunzip it first"
    return (
        f"convert the file, as with: iconv -f {'utf-16' if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else 'latin1'} -t utf-8"
    )


def _kind_of(texts: list[str]) -> Callable[[str], object]:
    """Numbers, if most of the filled fields are numbers; then rows with other fields fail."""
    filled = [text for text in texts if text]
    numbers: list[int | float] = []
    rounded = 0
    for text in filled:
        try:
            numbers.append(_number(text))
        except _Rounded:
            rounded += 1
        except ValueError:
            pass
    if 2 * (len(numbers) + rounded) <= len(filled):
        return str
    return _number if all(isinstance(number, int) for number in numbers) else _float


class _Rounded(ValueError):
    """The text is a number, and floating point would change it."""


def _number(text: str) -> int | float:
    """An integer if 64 bits can hold it, otherwise floating point."""
    whole = _whole(text)
    return whole if whole is not None and -(1 << 63) <= whole < 1 << 63 else _float(text)


def _float(text: str) -> float:
    """Floating point, without what only Python takes for numbers: 2024_01, and digits of other scripts."""
    if "_" in text or not text.isascii():
        raise ValueError("not a number as files have them")
    number = float(text)
    if abs(number) >= EXACT:
        whole = _whole(text)
        is_infinite = math.isinf(number) and any(map(str.isdigit, text))
        if is_infinite or (whole is not None and not is_held_by_float(whole)):
            raise _Rounded(text)
    return number


def _whole(text: str) -> int | None:
    try:
        return int(text) if "_" not in text and text.isascii() else None
    except ValueError:
        return None


def write_csv(parts: Parts, total: int, path: Path) -> None:
    """Write one line per row. A vector takes a field for each number if all vectors have one length; deeper values are written as JSON."""
    widths = _widths(parts)
    header = ["row", *(field for name, width in widths.items() for field in ([f"{name}_{i}" for i in range(width)] if width else [name]))]
    if twice := [field for field, count in Counter(header).items() if count > 1]:
        raise PredictError("RW834", f"two fields of a line would be called {twice[0]!r}", why="a vector takes a field for each number")
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
        file.write(_line(header, delimiter))
        for row, values in plain_rows(parts(), list(widths)):
            fields = (field for value, width in zip(values, widths.values()) for field in _fields(value, width))
            file.write(_line([row, *fields], delimiter))


def _widths(parts: Parts) -> dict[str, int]:
    """The number of fields that each column takes: the length of its vectors if all are equally long, else 0 for a single field."""
    lengths: dict[str, set[int]] = {name: set() for name in column_names(parts())}
    for results in parts():
        for name, column in results.columns.items():
            if 0 not in lengths[name]:
                lengths[name] |= _lengths(column)
    return {name: min(found) if len(found) == 1 else 0 for name, found in lengths.items()}


def _lengths(column: Column) -> set[int]:
    """The lengths of the vectors in a column; 0 stands for anything else."""
    if isinstance(column, np.ndarray):
        return {column.shape[1] if column.ndim == 2 and column.dtype.kind != "c" else 0}
    return {len(value) if _is_vector(value) else 0 for value in entries(column) if value is not None}


def _is_vector(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    kinds = {bool if isinstance(item, bool) else type(item) for item in value if item is not None}
    return kinds <= {int, float} or kinds == {bool}


def _line(fields: list[Any], delimiter: str) -> str:
    """Quotes fields itself: Python's writer leaves a carriage return without quotes, and its reader then refuses the file."""
    return delimiter.join("" if field is None else _quoted(str(field), delimiter) for field in fields) + "\n"


def _quoted(text: str, delimiter: str) -> str:
    is_plain = not any(mark in text for mark in (delimiter, '"', "\r", "\n"))
    return text if is_plain else '"' + text.replace('"', '""') + '"'


def _fields(value: Any, width: int) -> list[Any]:
    if width:
        return [None] * width if value is None else value
    return [json_text(value) if isinstance(value, (list, dict)) else value]


FORMAT = Format((".csv", ".tsv"), CsvSource, write_csv)
