"""Results as Arrow tables. A first pass finds the type of each column, so that it does not depend on the rows that come first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from rankwise.offline.columns import has_type, with_inner
from rankwise.offline.format import Parts
from rankwise.offline.lazy import pa
from rankwise.offline.parts import Results
from rankwise.offline.row_batches import Column, is_arrow
from rankwise.offline.text_lines import entries, json_text
from rankwise.offline.values import is_utf8
from rankwise.offline.workspace import PredictError

Types = dict[str, Any]  # Arrow's types; None: values without a common type, which are written as JSON text

_GROUP_ROWS, _GROUP_BYTES = 65536, 16 << 20


def tables_of(parts: Parts) -> tuple[Any, Iterator[Any]]:
    """The schema of the output, and its rows as tables of some megabytes. A table has whole batches, which are cut at the same rows however
    often a job was interrupted."""
    types = column_types(parts)
    fields = [(_utf8(name), pa.string() if kind is None else kind) for name, kind in types.items()]
    schema = pa.schema([("row", pa.int64()), *fields])
    return schema, _grouped((batch for results in parts() for batch in _record_batches(results, types, schema)), schema)


@contextmanager
def arrow_errors_as_findings() -> Iterator[None]:
    """Turn errors of pyarrow's writers into findings."""
    try:
        yield
    except (pa.ArrowException, NotImplementedError) as error:
        summary = "a column is of a type that this format cannot hold"
        raise PredictError("RW834", summary, why=str(error)[:300], next=("write .jsonl, or leave the column out of --keep",)) from error


def column_types(parts: Parts) -> Types:
    """The type that all batches of a column have in common. Values are looked at again only if the batches' types differ."""
    found: dict[str, dict[Any, None]] = {}
    for results in parts():
        for name, column in results.columns.items():
            kinds = found.setdefault(name, {})
            if None not in kinds:
                kinds[_type_of(name, column)] = None
    types = {name: _without_empty_objects(_common_type([kind for kind in kinds if kind != pa.null()])) for name, kinds in found.items()}
    doubtful = [name for name, kinds in found.items() if len(kinds) > 1 and types[name] is not None]
    for results in parts() if doubtful else ():
        for name in doubtful:
            if name in results.columns and types[name] is not None and not _fits(results.columns[name], types[name]):
                types[name] = None
    return types


def _common_type(kinds: list[Any]) -> Any:
    if len(kinds) < 2:
        return kinds[0] if kinds else pa.null()
    if None in kinds:
        return None
    try:
        schemas = [pa.schema([("", _widest(kind))]) for kind in kinds]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except pa.ArrowTypeError:
        return None


def _without_empty_objects(kind: Any) -> Any:
    """None for a type with a struct without fields, which Parquet does not have."""
    return None if kind is None or has_type(kind, lambda one: pa.types.is_struct(one) and not one.num_fields) else kind


def _widest(kind: Any) -> Any:
    """64 bits for every number: Arrow itself would join int32 and float32 to float32, which cannot hold all of them."""
    if pa.types.is_integer(kind):
        return pa.int64()
    return pa.float64() if pa.types.is_floating(kind) else with_inner(kind, _widest)


def _fits(column: Column, kind: Any) -> bool:
    """Whether every value stays the same in that type: a double does not hold all integers."""
    try:
        _array(column, kind)
    except (pa.ArrowException, OverflowError):
        return False
    return True


def _type_of(name: str, column: Column) -> Any:
    """The type of a column; None if its values have no type in common."""
    if is_arrow(column):
        return column.type
    is_array = isinstance(column, np.ndarray)
    dtypes = {value.dtype for value in ([column] if is_array else column) if isinstance(value, (np.ndarray, np.generic))}
    for dtype in dtypes:
        if dtype.kind == "c":
            raise PredictError("RW834", f"tables cannot hold the output {name!r}", why=f"it is {dtype}", next=("write .npy or .jsonl",))
    try:
        return (_nested(column[:0]) if is_array else _of_values(column)).type
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):  # UnicodeEncodeError: the name of a field is not UTF-8
        return None


def _grouped(batches: Iterator[tuple[Any, int]], schema: Any) -> Iterator[Any]:
    """Tables of whole batches; a table ends with the batch that fills it."""
    held: list[Any] = []
    rows = nbytes = 0
    for batch, size in batches:
        held.append(batch)
        rows, nbytes = rows + len(batch), nbytes + size
        if rows >= _GROUP_ROWS or nbytes >= _GROUP_BYTES:
            yield _table(held, schema)
            held, rows, nbytes = [], 0, 0
    if held:
        yield _table(held, schema)


def _table(batches: list[Any], schema: Any) -> Any:
    """Join the batches. An empty one is added, because Arrow copies only several: of a slice it would also write bits of its neighbours."""
    return pa.Table.from_batches([*batches, batches[0].slice(0, 0)], schema).combine_chunks()


def _record_batches(results: Results, types: Types, schema: Any) -> Iterator[tuple[Any, int]]:
    """The record batches, each with its number of bytes."""
    count = len(results.rows)
    arrays = [pa.array(results.rows)]
    for (name, kind), field in zip(types.items(), list(schema)[1:]):
        arrays.append(_array(results.columns[name], kind) if name in results.columns else pa.nulls(count, field.type))
    whole, at = pa.record_batch(arrays, schema=schema), 0
    for length, size in results.batches or [(count, whole.nbytes)]:
        if length:
            yield whole.slice(at, length), size
        at += length


def _array(column: Column, kind: Any) -> Any:
    if kind is None:
        return pa.array([None if value is None else json_text(value) for value in entries(column)], pa.string())
    array = column if is_arrow(column) else _nested(column) if isinstance(column, np.ndarray) else _of_values(column, kind)
    return array if array.type == kind else array.cast(kind)


def _nested(column: np.ndarray[Any, Any]) -> Any:
    values = pa.array(np.ascontiguousarray(column).reshape(-1))
    for depth in range(column.ndim - 1, 0, -1):
        count = math.prod(column.shape[:depth])
        values = pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32) * column.shape[depth]), values)
    return values


def _of_values(values: list[Any], kind: Any = None) -> Any:
    kinds = {value.dtype if isinstance(value, (np.ndarray, np.generic)) else None for value in values if value is not None}
    plain = [_leaves(value, is_one_dtype=len(kinds) == 1) for value in values]
    try:
        return pa.array(plain, kind)
    except UnicodeEncodeError:
        return pa.array([_utf8(value) for value in plain], kind)


def _leaves(value: Any, is_one_dtype: bool) -> Any:
    """Arrays as pyarrow takes them, of one dimension at most. Values of several dtypes become Python's numbers, joined without loss."""
    if not isinstance(value, (np.ndarray, np.generic)):
        return value
    if not is_one_dtype or not value.ndim:
        return value.tolist()
    return value if value.ndim == 1 else [_leaves(row, True) for row in np.asarray(value)]


def _utf8(value: Any) -> Any:
    """Half of a surrogate pair, as in names of files that are not UTF-8, becomes a backslash and a number."""
    if isinstance(value, str):
        return value if is_utf8(value) else value.encode(errors="backslashreplace").decode()
    if isinstance(value, list):
        return [_utf8(item) for item in value]
    return {name: _utf8(item) for name, item in value.items()} if isinstance(value, dict) else value
