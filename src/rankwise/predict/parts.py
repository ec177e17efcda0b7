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

from rankwise.predict.batches import Column, joined

_ALIGN = 64


@dataclass
class Results:
    """Results of consecutive rows: columns for the rows that worked, in order, and the reasons of those that did not."""

    rows: Any = ()  # of the columns; an array of row numbers once it is made
    columns: dict[str, Column] = field(default_factory=dict)
    errors: list[dict[str, Any]] = field(default_factory=list)
    first_row: int = 0
    length: int = 0  # rows it stands for, failed ones included

    def __post_init__(self) -> None:
        self.rows = np.asarray(self.rows, np.int64)


def join(pieces: list[Results]) -> Results:
    """Consecutive results as one."""
    filled = [piece for piece in pieces if len(piece.rows)]
    names = list(filled[0].columns) if filled else []
    return Results(
        rows=np.concatenate([piece.rows for piece in filled]) if filled else (),
        columns={name: joined([piece.columns[name] for piece in filled]) for name in names},
        errors=[error for piece in pieces for error in piece.errors],
        first_row=pieces[0].first_row,
        length=sum(piece.length for piece in pieces),
    )


def write_part(path: Path, results: Results) -> dict[str, int]:
    """Write through to the disk under a name that appears when it is complete; returns size and checksum for the journal."""
    described: list[dict[str, Any]] = []  # the row numbers, then the columns
    arrays: list[np.ndarray[Any, Any]] = []
    at = 0
    for name, column in [("", results.rows), *results.columns.items()]:
        if isinstance(column, np.ndarray):
            arrays.append(np.ascontiguousarray(column))
            described.append({"name": name, "dtype": column.dtype.str, "shape": list(column.shape), "at": at})
            at += -(-column.nbytes // _ALIGN) * _ALIGN
        else:
            described.append({"name": name, "values": list(column)})
    head = {"first_row": results.first_row, "length": results.length, "errors": results.errors, "columns": described}
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGN)
    temporary = path.with_suffix(".tmp")
    crc, size = 0, 0
    try:
        with temporary.open("wb") as file:
            for block in (len(text).to_bytes(8, "little"), text, *_padded(arrays)):
                file.write(block)
                crc, size = zlib.crc32(block, crc), size + len(memoryview(block).cast("B") if len(block) else b"")
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
    data = np.memmap(path, dtype=np.uint8, mode="r")
    length = int.from_bytes(data[:8].tobytes(), "little")
    head = json.loads(data[8 : 8 + length].tobytes())
    rows, *columns = ((entry["name"], _column(data, 8 + length, entry)) for entry in head["columns"])
    return Results(rows[1], dict(columns), head["errors"], head["first_row"], head["length"])


def _column(data: Any, start: int, entry: dict[str, Any]) -> Column:
    if "values" in entry:
        return entry["values"]
    dtype, shape, begin = np.dtype(entry["dtype"]), tuple(entry["shape"]), start + entry["at"]
    nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(data[begin : begin + nbytes].tobytes(), dtype).reshape(shape)


def _padded(arrays: list[np.ndarray[Any, Any]]) -> Iterator[bytes]:
    for array in arrays:
        yield array.tobytes() + b"\0" * (-array.nbytes % _ALIGN)
