"""JSON Lines: one object per line. A line that cannot be read is one failed row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import Any

from rankwise.offline.addresses import Place
from rankwise.offline.format import Format, Parts
from rankwise.offline.parts import column_names
from rankwise.offline.row_batches import Row, Selection, is_fractional
from rankwise.offline.text_lines import TOO_LONG, LinesSource, json_text, plain_rows

_MAX_DEPTH = 250  # of lists and objects in each other: code that copies or writes them calls itself for each level
_SAMPLE, _SAMPLE_BYTES = 1000, 64 << 20  # how far to look for a wanted column
_KIND_ROWS, _KIND_BYTES = 100, 16 << 20  # how far to look for a fraction


class JsonLinesSource(LinesSource):
    def __init__(self, path: Place, selection: Selection) -> None:
        super().__init__(path)
        self._chosen = selection.of_first(self._first_rows(), path.name) or ([], list(selection.keep))
        self.take_for_fractional(self._find_fractional())

    def _find_fractional(self) -> frozenset[str]:
        """Columns with a fraction in one of the first rows. JSON may say 1 for 1.0, and a type must not depend on the neighbouring rows."""
        rows = [row for row, _ in takewhile(lambda each: each[1] < _KIND_BYTES, islice(self._rows(0), _KIND_ROWS))]
        return frozenset(name for name in self._chosen[0] if any(is_fractional(row.values.get(name)) for row in rows))

    def _first_rows(self) -> Iterator[Row]:
        is_any_read = False
        for number, (row, position) in enumerate(self._rows(0)):
            yield row
            is_any_read = is_any_read or bool(row.values)
            if is_any_read and (number >= _SAMPLE or position > _SAMPLE_BYTES):
                return

    def _rows(self, position: int) -> Iterator[tuple[Row, int]]:
        for line, end in self._lines(position):
            if line is None:
                yield TOO_LONG, end
            elif line.strip():
                yield self._row(line), end

    def _row(self, line: bytes) -> Row:
        try:
            values = json.loads(line.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            return Row(why=f"not UTF-8: {error.reason} at byte {error.start}")
        except (ValueError, RecursionError) as error:
            return Row(why=f"not JSON: {str(error)[:200]}")
        if not isinstance(values, dict):
            return Row(why=f"a JSON {_kind(values)}, where an object is wanted")
        if line.count(b"[") + line.count(b"{") > _MAX_DEPTH and _is_deep(values):
            return Row(why=f"more than {_MAX_DEPTH} lists and objects within each other")
        return Row(values, values)


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_MAX_DEPTH):
        inner = chain.from_iterable(each.values() if isinstance(each, dict) else each for each in level)
        level = [each for each in inner if isinstance(each, (dict, list))]
    return bool(level)


def _kind(value: Any) -> str:
    return {list: "array", str: "string", bool: "boolean", type(None): "null"}.get(type(value), "number")


def write_json_lines(parts: Parts, total: int, path: Path) -> None:
    """Write one object per row; an output that a row does not have is null."""
    names = column_names(parts())
    with path.open("w", encoding="utf-8") as file:
        for row, values in plain_rows(parts(), names):
            file.write(json_text({"row": row, **dict(zip(names, values))}) + "\n")


FORMAT = Format((".jsonl", ".ndjson"), JsonLinesSource, write_json_lines)
