"""What readers of text share: lines of a bounded length, and rows gathered into batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rankwise.offline.batches import Batch, Row, of_rows

MAX_LINE = 64 << 20
TOO_LONG = Row(why=f"more than {MAX_LINE >> 20} MB without an end")


def lines_of(path: Path, position: int) -> Iterator[tuple[bytes | None, int]]:
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


def gathered(rows: Iterator[tuple[Row, int]], size: int, first_row: int, chosen: tuple[list[str], list[str]]) -> Iterator[Batch]:
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
