"""What text formats share: lines of limited length, rows gathered into batches, and results as rows of plain values."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from rankwise.offline.addresses import Place
from rankwise.offline.columns import is_lists, is_number, is_tensors, tensors
from rankwise.offline.format import LateFraction, Source
from rankwise.offline.identity import file_identity
from rankwise.offline.lazy import pa
from rankwise.offline.parts import Results
from rankwise.offline.row_batches import Batch, Chosen, Column, Row, has_fraction, is_arrow, of_rows
from rankwise.offline.values import is_utf8, plain

MAX_LINE = 64 << 20
TOO_LONG = Row(why=f"more than {MAX_LINE >> 20} MB without an end")
_SLICE = 1024  # rows that are made plain values at once: these take many times the memory of an array


def lines_of(path: Place, position: int, stop: int | None = None) -> Iterator[tuple[bytes | None, int]]:
    """Each line with its line end, up to the byte `stop`, and the byte behind it. None stands for a line that is too long, which is skipped
    and not held."""
    with path.open("rb") as file:
        file.seek(position)

        def more() -> bytes:
            return file.readline(MAX_LINE if stop is None else min(MAX_LINE, stop - position))

        while line := more():
            position += len(line)
            if len(line) < MAX_LINE or line.endswith(b"\n"):
                yield line, position
                continue
            while line and not line.endswith(b"\n"):
                line = more()
                position += len(line)
            yield None, position


class LinesSource(Source):
    """The position behind each batch is a byte offset, so resuming does not read from the start. What is appended to the file while it is
    read is ignored, because its last line may not be complete yet."""

    _start = 0  # the byte where the first row begins
    _chosen: Chosen = ([], [])
    _fractional: frozenset[str] = frozenset()  # columns whose whole numbers become floating point
    _known: frozenset[str] = frozenset()  # these, and columns that never change their type

    def __init__(self, path: Place) -> None:
        self._path, self.identity = path, file_identity(path)

    def _lines(self, position: int) -> Iterator[tuple[bytes | None, int]]:
        return lines_of(self._path, position, self.identity["bytes"])

    def _rows(self, position: int) -> Iterator[tuple[Row, int]]:
        """The rows from the byte `position` on, each with the byte behind it."""
        raise NotImplementedError

    def batches(self, size: int, first_row: int = 0, position: int | None = None) -> Iterator[Batch]:
        rows = self._rows(position) if position is not None else islice(self._rows(self._start), first_row, None)
        while held := list(islice(rows, size)):
            batch = of_rows([row for row, _ in held], first_row, self._chosen, held[-1][1], self._fractional)
            for name in batch.columns.keys() - self._known:
                if has_fraction(batch.columns[name]):
                    raise LateFraction(name, first_row)
            yield batch
            first_row += len(held)

    def take_for_fractional(self, names: Iterable[str]) -> None:
        self._fractional |= frozenset(names)
        self._known |= self._fractional


def plain_rows(parts: Iterable[Results], names: list[str]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Row numbers, and values under these names; None if a batch does not have the column."""
    for results in parts:
        for start in range(0, len(results.rows), _SLICE):
            piece = results.cut(start, start + _SLICE)
            columns = [entries(piece.columns[name]) if name in piece.columns else [None] * len(piece.rows) for name in names]
            yield from zip(piece.rows.tolist(), zip(*columns) if columns else [()] * len(piece.rows))


def entries(column: Column) -> list[Any]:
    if is_arrow(column):
        return _of_arrow(column)
    if isinstance(column, np.ndarray) and column.dtype.kind != "c":
        return list(column.tolist())
    return [plain(value) if isinstance(value, (np.ndarray, np.generic)) else value for value in column]


def json_text(value: Any, only_ascii: bool = False) -> str:
    """JSON text. Numbers that JSON does not have (NaN, infinity) become null; half of a surrogate pair, which is not UTF-8, is escaped."""
    try:
        text = json.dumps(value, ensure_ascii=only_ascii, allow_nan=False)
    except ValueError:
        text = json.dumps(_without_nan(value), ensure_ascii=only_ascii)
    return text if only_ascii or is_utf8(text) else json_text(value, only_ascii=True)


def _without_nan(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return {key: _without_nan(item) for key, item in value.items()} if isinstance(value, dict) else value


def _of_arrow(column: Any) -> list[Any]:
    """Times become ISO 8601 (in UTC, with a Z, if they have a zone), decimals their digits, bytes base64, UUIDs their text."""
    types, kind = pa.types, column.type
    if is_tensors(column):
        return [None if array is None else array.tolist() for array in tensors(column)]
    if isinstance(column, pa.ExtensionArray):
        has_own_values = kind.extension_name in ("arrow.uuid", "arrow.bool8")
        return [plain(value) for value in column.to_pylist()] if has_own_values else _of_arrow(column.storage)
    if types.is_dictionary(kind):
        return _of_arrow(column.dictionary_decode())
    if is_lists(kind):
        return _lists(column)
    if types.is_struct(kind):
        return _structs(column)
    if types.is_timestamp(kind):
        local = _times(column.cast(pa.timestamp(kind.unit)))
        return [value.replace(" ", "T") + ("Z" if kind.tz else "") if isinstance(value, str) else value for value in local]
    if types.is_date(kind) or types.is_time(kind):
        return _times(column)
    values: list[Any] = (column.cast(pa.int64()) if types.is_duration(kind) else column).to_pylist()
    return values if is_number(kind) or types.is_string(kind) else [plain(value) for value in values]


def _times(column: Any) -> list[Any]:
    """Times as texts. A time beyond what a text can say (years, hours of a day) becomes the whole number that is stored."""
    texts = column.cast(pa.string()).to_pylist()
    numbers = column.view(getattr(pa, f"int{column.type.bit_width}")()).to_pylist()
    return [number if text and text.startswith("<") else text for text, number in zip(texts, numbers)]


def _lists(column: Any) -> list[Any]:
    inner, at = _of_arrow(column.flatten()), 0
    found: list[Any] = []
    for length in column.value_lengths().to_pylist():
        found.append(None if length is None else inner[at : at + length])
        at += length or 0
    return found


def _structs(column: Any) -> list[Any]:
    names = [column.type.field(i).name for i in range(column.type.num_fields)]
    rows = zip(*map(_of_arrow, column.flatten())) if names else ((),) * len(column)
    return [dict(zip(names, row)) if valid else None for row, valid in zip(rows, column.is_valid().to_pylist())]
