"""Columns as blocks of a part's file: arrays as they lie in memory, Arrow arrays as Arrow streams, everything else as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np

from rankwise.offline.batches import Column, is_arrow
from rankwise.offline.sources.tables import arrow

Array = np.ndarray[Any, Any]
ALIGN = 64


class Blocks:
    """Blocks in the order in which they are added. `described` columns know where theirs begin, counted from the first."""

    def __init__(self) -> None:
        self.data: list[Array] = []
        self._at = 0

    def described(self, name: str, column: Column) -> dict[str, Any]:
        if isinstance(column, np.ndarray):
            return {"name": name, **self._array(column)}
        if is_arrow(column):
            return {"name": name, **self._added(_stream(column), arrow=True)}
        return {"name": name, "runs": [self._array(run) if isinstance(run, np.ndarray) else self._json(run) for run in _runs(column)]}

    def _array(self, array: Array) -> dict[str, Any]:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return self._added(flat, dtype=array.dtype.str, shape=list(array.shape))

    def _json(self, values: list[Any]) -> dict[str, Any]:
        return self._added(np.frombuffer(json.dumps(values, separators=(",", ":")).encode(), np.uint8))

    def _added(self, block: Array, **facts: Any) -> dict[str, Any]:
        at = self._at
        self.data.append(block)
        self._at += padded_size(block.nbytes)
        return {"at": at, "bytes": block.nbytes, **facts}


def padded_size(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


def read_column(data: Array, described: dict[str, Any]) -> Column:
    """`data` begins with the first block, and lives as long as the column: arrays are views of it."""
    if "runs" in described:
        return [value for run in described["runs"] for value in read_column(data, run)]
    block = data[described["at"] : described["at"] + described["bytes"]]
    if "arrow" in described:
        with arrow("ipc").open_stream(arrow("py_buffer")(block)) as reader:
            return reader.read_all().column(0).combine_chunks()
    if "dtype" in described:
        return block.view(described["dtype"]).reshape(described["shape"])
    return json.loads(block.tobytes())


def _runs(values: list[Any]) -> Iterator[Array | list[Any]]:
    """Neighbouring entries that are arrays of one shape and dtype together, so that they come back as what they are."""
    for kind, run in groupby(values, key=_shape):
        entries = list(run)
        yield entries if kind is None else np.stack(entries)


def _shape(value: Any) -> tuple[Any, ...] | None:
    return (value.dtype, value.shape) if isinstance(value, (np.ndarray, np.generic)) else None


def _stream(column: Any) -> Array:
    sink = arrow("BufferOutputStream")()
    batch = arrow("record_batch")([column], names=["column"])
    with arrow("ipc").new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return np.frombuffer(sink.getvalue(), np.uint8)
