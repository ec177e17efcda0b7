"""What formats of text share: lines of a bounded length, rows gathered into batches, and results as rows of plain values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rankwise.offline.addresses import Place
from rankwise.offline.batches import Batch, Chosen, Row, of_rows
from rankwise.offline.entries import entries
from rankwise.offline.parts import Results

MAX_LINE = 64 << 20
TOO_LONG = Row(why=f"more than {MAX_LINE >> 20} MB without an end")
_SLICE = 1024  # rows that are plain values at a time: these take many times the memory of an array


def lines_of(path: Place, position: int) -> Iterator[tuple[bytes | None, int]]:
    """Each line with its end, and the byte behind it. None stands for a line that is too long: it is passed over, not held."""
    with path.open("rb") as file:
        file.seek(position)
        while line := file.readline(MAX_LINE):
            position += len(line)
            if len(line) < MAX_LINE or line.endswith(b"\n"):
                yield line, position
                continue
            while line and not line.endswith(b"\n"):
                line = file.readline(MAX_LINE)
                position += len(line)
            yield None, position


def gathered(rows: Iterator[tuple[Row, int]], size: int, first_row: int, chosen: Chosen) -> Iterator[Batch]:
    """Rows with the bytes they end at, as batches."""
    held: list[Row] = []
    end = 0
    for row, end in rows:
        held.append(row)
        if len(held) == size:
            yield of_rows(held, first_row, chosen, end)
            first_row, held = first_row + size, []
    if held:
        yield of_rows(held, first_row, chosen, end)


def plain_rows(parts: Iterable[Results], names: list[str]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Row numbers and values under these names, None where a batch has no such column."""
    for results in parts:
        for start in range(0, len(results.rows), _SLICE):
            piece = results.cut(start, start + _SLICE)
            columns = [entries(piece.columns[name]) if name in piece.columns else [None] * len(piece.rows) for name in names]
            yield from zip(piece.rows.tolist(), zip(*columns) if columns else [()] * len(piece.rows))
