"""Parquet and Arrow files. A first pass finds the type of each column, so that it does not depend on the rows that happen to come first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.offline.batches import Column, is_arrow
from rankwise.offline.parts import Results
from rankwise.offline.sinks.entries import entries, json_text
from rankwise.offline.sinks.groups import regrouped
from rankwise.offline.sinks.kinds import Kind, kinds_of
from rankwise.offline.sinks.types import NoCommonType, arrow_type, without_dictionaries
from rankwise.offline.sources.tables import arrow, is_lists, is_number
from rankwise.offline.values import is_utf8
from rankwise.offline.workspace import PredictError

Parts = Callable[[], Iterable[Results]]


def write_parquet(parts: Parts, total: int, path: Path) -> None:
    types = _types(parts())
    schema = _schema(types)
    tables = (_table(group, types, schema) for group in regrouped(parts()))
    with _told():
        first = list(islice(tables, 1))
        repeating = [name for table in first for field in schema for name in _repeating(field.name, field.type, table.column(field.name))]
        with arrow("parquet").ParquetWriter(path, schema, use_dictionary=repeating or False) as writer:
            for table in chain(first, tables):
                writer.write_table(table, row_group_size=len(table))


def _repeating(name: str, kind: Any, column: Any = None) -> Iterator[str]:
    """The columns, as Parquet calls them, that are stored as a list of distinct values and numbers of these. For values that hardly
    ever come twice, as most models' outputs are, that takes more room and most of the time of writing."""
    types = arrow("types")
    if is_lists(kind):
        yield from _repeating(f"{name}.list.element", kind.value_type)
    elif types.is_struct(kind):
        for field in kind:
            yield from _repeating(f"{name}.{field.name}", field.type)
    elif types.is_map(kind):
        yield from _repeating(f"{name}.key_value.key", kind.key_type)
        yield from _repeating(f"{name}.key_value.value", kind.item_type)
    elif not is_number(kind) or not (types.is_floating(kind) if column is None else _are_varied(column)):
        yield name


def _are_varied(numbers: Any) -> bool:
    """By the first of them, which are the same however a job was interrupted."""
    some = numbers.slice(0, 1024).to_pylist()
    return len(set(some)) > len(some) // 2


def write_arrow(parts: Parts, total: int, path: Path) -> None:
    types = _types(parts())
    schema = _schema(types)
    with _told(), arrow("OSFile")(str(path), "wb") as file, arrow("ipc").new_file(file, schema) as writer:
        for group in regrouped(parts()):
            writer.write_table(_table(group, types, schema))


def _types(parts: Iterable[Results]) -> dict[str, Any]:
    """Of all columns; None is one whose values have no common type: they are written as JSON text."""
    return {name: _type(name, kind) for name, kind in kinds_of(part.columns for part in parts).items()}


def _type(name: str, kind: Kind) -> Any:
    try:
        return arrow_type(kind)
    except NoCommonType:
        return None
    except TypeError as error:
        raise PredictError("RW834", f"tables cannot hold the output {name!r}", why=str(error), next=("write .npy or .jsonl",)) from error


def _schema(types: dict[str, Any]) -> Any:
    fields = [(_utf8(name), arrow("string")() if kind is None else kind) for name, kind in types.items()]
    return arrow("schema")([("row", arrow("int64")()), *fields])


@contextmanager
def _told() -> Iterator[None]:
    """What pyarrow cannot write, as a finding."""
    try:
        yield
    except (arrow("ArrowException"), arrow("ArrowInvalid"), NotImplementedError) as error:
        summary = "a column is of a type that this format cannot hold"
        raise PredictError("RW834", summary, why=str(error)[:300], next=("write .jsonl, or leave the column out of --keep",)) from error


def _table(group: Results, types: dict[str, Any], schema: Any) -> Any:
    missing = [None] * len(group.rows)
    arrays = [_array(group.columns.get(name, missing), kind) for name, kind in types.items()]
    return arrow("Table").from_arrays([arrow("array")(group.rows, arrow("int64")()), *arrays], schema=schema)


def _array(column: Column, kind: Any) -> Any:
    if kind is None:
        return arrow("array")([None if value is None else json_text(value) for value in entries(column)], arrow("string")())
    if is_arrow(column):
        if is_number(column.type) and not column.null_count:
            return arrow("array")(column.to_numpy(zero_copy_only=False), column.type)  # the same as below, and much quicker
        fresh = column.take(arrow("array")(np.arange(len(column))))  # a slice is written with bytes of its neighbours
        plain = without_dictionaries(column.type)
        return fresh if plain == column.type else fresh.cast(plain)
    if isinstance(column, np.ndarray):
        return _of_numbers(column, kind)
    return _of_values([_leaf(value, kind) for value in column], kind)


def _of_numbers(column: np.ndarray[Any, Any], kind: Any) -> Any:
    inner = _innermost(kind)
    values = arrow("array")(np.ascontiguousarray(column).reshape(-1).astype(inner.to_pandas_dtype(), copy=False), inner)
    for depth in range(column.ndim - 1, 0, -1):
        count = int(np.prod(column.shape[:depth], dtype=np.int64))
        offsets = np.arange(count + 1, dtype=np.int32) * column.shape[depth]
        values = arrow("ListArray").from_arrays(arrow("array")(offsets), values)
    return values


def _leaf(value: Any, kind: Any) -> Any:
    """An array in a list of them: vectors go as they are, in the column's dtype; pyarrow takes no others."""
    if not isinstance(value, np.ndarray):
        return value.item() if isinstance(value, np.generic) else value
    return value.astype(_innermost(kind).to_pandas_dtype(), copy=False) if value.ndim == 1 else value.tolist()


def _of_values(values: list[Any], kind: Any) -> Any:
    try:
        return arrow("array")(values, kind)
    except UnicodeEncodeError:
        return arrow("array")([_utf8(value) for value in values], kind)


def _innermost(kind: Any) -> Any:
    while arrow("types").is_list(kind):
        kind = kind.value_type
    return kind


def _utf8(value: Any) -> Any:
    """Half of a surrogate pair, as in names of files that are not UTF-8, becomes a backslash and its number."""
    if isinstance(value, str):
        return value if is_utf8(value) else value.encode(errors="backslashreplace").decode()
    if isinstance(value, list):
        return [_utf8(item) for item in value]
    return {name: _utf8(item) for name, item in value.items()} if isinstance(value, dict) else value
