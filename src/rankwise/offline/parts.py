"""Parts: the results of consecutive rows in one file each, which is there whole or not at all."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.offline.batches import Column, joined
from rankwise.offline.blocks import ALIGN, Blocks, padded_size, read_column


@dataclass
class Results:
    """Results of consecutive rows: columns for the rows that worked, in order, and the reasons of those that did not."""

    rows: Any = ()  # of the columns; an array of row numbers once it is made
    columns: dict[str, Column] = field(default_factory=dict)
    errors: list[dict[str, Any]] = field(default_factory=list)
    first_row: int = 0
    length: int = 0  # rows it stands for, failed ones included
    file_column: str = ""  # the column that holds the names of the input's files, where the input is a folder

    def __post_init__(self) -> None:
        self.rows = np.asarray(self.rows, np.int64)

    def cut(self, start: int, stop: int) -> Results:
        """Some of the rows that worked, without the others' errors."""
        columns = {name: column[start:stop] for name, column in self.columns.items()}
        return Results(self.rows[start:stop], columns, [], self.first_row, self.length, self.file_column)


def join(pieces: list[Results]) -> Results:
    """Consecutive results as one."""
    filled = [piece for piece in pieces if len(piece.rows)]
    return Results(
        rows=np.concatenate([piece.rows for piece in filled]) if filled else (),
        columns=join_columns([(piece.columns, len(piece.rows)) for piece in filled]),
        errors=[error for piece in pieces for error in piece.errors],
        first_row=pieces[0].first_row,
        length=sum(piece.length for piece in pieces),
        file_column=next((piece.file_column for piece in filled), ""),
    )


def join_columns(pieces: list[tuple[dict[str, Column], int]]) -> dict[str, Column]:
    """Columns and numbers of rows, as one. A column that some pieces do not have is None there: a model may have optional outputs."""
    names = dict.fromkeys(name for columns, _ in pieces for name in columns)
    return {name: joined([columns[name] if name in columns else [None] * length for columns, length in pieces]) for name in names}


def write_part(path: Path, results: Results) -> dict[str, int]:
    """Write through to the disk under a name that appears when it is complete; returns size and checksum for the journal."""
    blocks = Blocks()
    described = [blocks.described(name, column) for name, column in [("", results.rows), *results.columns.items()]]
    facts = {"first_row": results.first_row, "length": results.length, "file_column": results.file_column, "errors": results.errors}
    text = json.dumps({**facts, "columns": described}, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGN)
    temporary = path.with_suffix(".tmp")
    crc, size = 0, 0
    try:
        with temporary.open("wb") as file:
            for block in (len(text).to_bytes(8, "little"), text, *_padded(blocks)):
                file.write(block)
                crc, size = zlib.crc32(block, crc), size + len(block)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return {"bytes": size, "crc": crc}


def is_whole(path: Path, nbytes: int, crc: int) -> bool:
    """Whether the file is what was written; costs a read, and no memory."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != nbytes:
                return False
            found = 0
            while block := file.read(1 << 20):
                found = zlib.crc32(block, found)
            return found == crc
    except OSError:
        return False


def read_part(path: Path) -> Results:
    """Its arrays are views of the mapped file: what nobody looks at is not read."""
    data = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
    length = int.from_bytes(data[:8].tobytes(), "little")
    head = json.loads(data[8 : 8 + length].tobytes())
    rows, *columns = ((entry["name"], read_column(data[8 + length :], entry)) for entry in head["columns"])
    return Results(rows[1], dict(columns), head["errors"], head["first_row"], head["length"], head["file_column"])


def _padded(blocks: Blocks) -> Iterator[Any]:
    for block in blocks.data:
        yield block.data
        yield b"\0" * (padded_size(block.nbytes) - block.nbytes)
