"""Parquet and Arrow files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.predict.parts import Results, join
from rankwise.predict.sources.tables import arrow
from rankwise.predict.workspace import PredictError

_GROUP_BYTES = 16 << 20
_GROUP_ROWS = 65536

Parts = Callable[[], Iterable[Results]]


def write_parquet(parts: Parts, total: int, path: Path) -> None:
    groups = regrouped(parts())
    first = next(groups, None)
    schema = _schema(first)
    with arrow("parquet").ParquetWriter(path, schema) as writer:
        for group in chain([first] if first else [], groups):
            writer.write_table(_table(group, schema), row_group_size=len(group.rows))


def write_arrow(parts: Parts, total: int, path: Path) -> None:
    groups = regrouped(parts())
    first = next(groups, None)
    schema = _schema(first)
    with arrow("OSFile")(str(path), "wb") as file, arrow("ipc").new_file(file, schema) as writer:
        for group in chain([first] if first else [], groups):
            writer.write_table(_table(group, schema))


def regrouped(parts: Iterable[Results]) -> Iterator[Results]:
    """The rows that worked in groups of one size, whatever sizes the parts have: the output must not show where a job was interrupted."""
    held: list[Results] = []
    count, size = 0, 0
    for part in parts:
        if not len(part.rows):
            continue
        size = size or _group_rows(part)
        held.append(part)
        count += len(part.rows)
        while count >= size:
            whole = join(held)
            yield _rows_of(whole, 0, size)
            rest = _rows_of(whole, size, count)
            held, count = ([rest] if len(rest.rows) else []), count - size
    if held:
        yield join(held)


def _rows_of(results: Results, start: int, stop: int) -> Results:
    return Results(results.rows[start:stop], {name: column[start:stop] for name, column in results.columns.items()})


def _group_rows(part: Results) -> int:
    """By the size of the first row, as a power of two: however long the parts are, it comes to the same."""
    row_bytes = sum(column[0].nbytes if isinstance(column, np.ndarray) else 64 for column in part.columns.values())
    return int(min(_GROUP_ROWS, 1 << max(0, (_GROUP_BYTES // max(row_bytes, 1)).bit_length() - 1)))


def _schema(first: Results | None) -> Any:
    columns = first.columns if first else {}
    return arrow("schema")([("row", arrow("int64")()), *((name, _type_of(column)) for name, column in columns.items())])


def _type_of(column: Any) -> Any:
    if not isinstance(column, np.ndarray):
        return arrow("array")(list(column)).type
    kind = arrow("from_numpy_dtype")(column.dtype)
    for _ in column.shape[1:]:
        kind = arrow("list_")(kind)
    return kind


def _table(results: Results, schema: Any) -> Any:
    arrays = [arrow("array")(results.rows, arrow("int64")())]
    for field in list(schema)[1:]:
        try:
            arrays.append(_array(results.columns[field.name], field.type))
        except (KeyError, ValueError, TypeError) as error:
            summary = f"the output {field.name!r} of row {results.rows[0]} is not like those before it"
            raise PredictError("RW834", summary, why=str(error)[:300]) from error
    return arrow("Table").from_arrays(arrays, schema=schema)


def _array(column: Any, kind: Any) -> Any:
    if not isinstance(column, np.ndarray):
        return arrow("array")(list(column), kind)
    values = arrow("array")(np.ascontiguousarray(column).reshape(-1))
    for depth in range(column.ndim - 1, 0, -1):
        count = int(np.prod(column.shape[:depth], dtype=np.int64))
        offsets = np.arange(count + 1, dtype=np.int32) * column.shape[depth]
        values = arrow("ListArray").from_arrays(arrow("array")(offsets), values)
    if values.type != kind:
        raise ValueError(f"{values.type}, where {kind} came before")
    return values
