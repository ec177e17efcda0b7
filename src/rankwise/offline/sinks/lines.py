"""JSON Lines and CSV."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from rankwise.offline.batches import is_arrow
from rankwise.offline.parts import Results
from rankwise.offline.sinks.entries import entries, json_text
from rankwise.offline.sinks.groups import column_names
from rankwise.offline.sinks.kinds import BOOL, Kind, List, Number, kinds_of
from rankwise.offline.workspace import PredictError

_SLICE = 1024  # rows that are plain values at a time: these take many times the memory of an array

Parts = Callable[[], Iterable[Results]]


def write_json_lines(parts: Parts, total: int, path: Path) -> None:
    """One object per row; an output that a row has not is null."""
    names = column_names(parts())
    with path.open("w", encoding="utf-8") as file:
        for part in _slices(parts()):
            for row, values in _rows(part, names):
                file.write(json_text({"row": row, **dict(zip(names, values))}) + "\n")


def write_csv(parts: Parts, total: int, path: Path) -> None:
    """One line per row; a vector takes a field for each of its numbers where all have one length, anything deeper is written as JSON."""
    widths = {name: _width(kind) for name, kind in _kinds(parts()).items()}
    header = ["row", *(field for name, width in widths.items() for field in _field_names(name, width))]
    if twice := [field for field, count in Counter(header).items() if count > 1]:
        raise PredictError("RW834", f"two fields of a line would be called {twice[0]!r}", why="a vector takes a field for each number")
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
        file.write(_line(header, delimiter))
        for part in _slices(parts()):
            for row, values in _rows(part, list(widths)):
                fields = (field for value, width in zip(values, widths.values()) for field in _fields(value, width))
                file.write(_line([row, *fields], delimiter))


def _line(fields: list[Any], delimiter: str) -> str:
    """Python's own writer leaves a carriage return without quotes, and its reader then refuses the file."""
    return delimiter.join("" if field is None else _quoted(str(field), delimiter) for field in fields) + "\n"


def _quoted(text: str, delimiter: str) -> str:
    is_plain = not any(mark in text for mark in (delimiter, '"', "\r", "\n"))
    return text if is_plain else '"' + text.replace('"', '""') + '"'


def _slices(parts: Iterable[Results]) -> Iterator[Results]:
    for part in parts:
        for start in range(0, len(part.rows), _SLICE):
            yield part.cut(start, start + _SLICE)


def _rows(part: Results, names: list[str]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Row numbers and values, None where the part has no such column."""
    columns = [entries(part.columns[name]) if name in part.columns else [None] * len(part.rows) for name in names]
    return zip(part.rows.tolist(), zip(*columns) if columns else [()] * len(part.rows))


def _kinds(parts: Iterable[Results]) -> dict[str, Kind]:
    """Of kept columns that of their values as texts say them."""
    slices = (part.columns.items() for part in _slices(parts))
    return kinds_of({name: entries(column) if is_arrow(column) else column for name, column in columns} for columns in slices)


def _width(kind: Kind) -> int:
    """Fields that a column of vectors takes; 0: it is written in one."""
    if isinstance(kind, List) and (isinstance(kind.inner, Number) or kind.inner == BOOL):
        return max(kind.length, 0)
    return 0


def _field_names(name: str, width: int) -> list[str]:
    return [f"{name}_{i}" for i in range(width)] if width else [name]


def _fields(value: Any, width: int) -> list[Any]:
    if width:
        return [None] * width if value is None else value
    return [json_text(value) if isinstance(value, (list, dict)) else value]
