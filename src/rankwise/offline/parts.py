"""Parts: files that hold the results of consecutive batches. A part is there whole, or not at all.

A part is a sequence of Arrow streams, one after the other: a batch whose columns have other types than those before it begins a new one.
Batches that are alike are stored together, with the places where one ends and the next begins.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.files import whole_file
from rankwise.offline.columns import decode, encode
from rankwise.offline.lazy import pa
from rankwise.offline.row_batches import Column, join_columns
from rankwise.offline.values import nbytes_of


@dataclass
class Results:
    """Results of consecutive rows: columns for the rows that worked, in order, and the errors of the rows that failed."""

    rows: Any = ()  # row numbers of the columns' entries, as an array
    columns: dict[str, Column] = field(default_factory=dict)
    errors: list[dict[str, Any]] = field(default_factory=list)
    first_row: int = 0
    length: int = 0  # rows it stands for, failed ones included
    file_column: str = ""  # the column with the names of the input's files, if the input is a folder
    batches: list[tuple[int, int]] = field(default_factory=list)  # for each batch in it: the rows that worked, and their bytes
    position: int | None = None  # of a single batch: where the reader stood behind it

    def __post_init__(self) -> None:
        self.rows = np.asarray(self.rows, np.int64)

    def cut(self, start: int, stop: int) -> Results:
        """Some of the rows that worked, without any errors."""
        columns = {name: column[start:stop] for name, column in self.columns.items()}
        return Results(self.rows[start:stop], columns, [], self.first_row, self.length, self.file_column)


class NextPart:
    """Collects results for the next part. Batches are cut at the same rows in every run of a job, parts are not."""

    def __init__(self, *results: Results) -> None:
        self.results: list[Results] = []
        self.nbytes = self.length = self.failed = 0
        for each in results:
            self.add(each)

    def add(self, results: Results) -> None:
        nbytes = sum(map(nbytes_of, results.columns.values()))
        self.results.append(replace(results, batches=[(len(results.rows), nbytes)]))
        self.nbytes += nbytes
        self.length, self.failed = self.length + results.length, self.failed + len(results.errors)

    @property
    def first_row(self) -> int:
        return self.results[0].first_row


def _runs(results: list[Results]) -> Iterator[Results]:
    """Neighbouring batches whose columns are alike, joined into one."""
    for _, run in groupby(results, key=form_of):
        alike = list(run)
        yield Results(
            rows=np.concatenate([each.rows for each in alike]),
            columns=join_columns([(each.columns, len(each.rows)) for each in alike]),
            errors=[error for each in alike for error in each.errors],
            first_row=alike[0].first_row,
            length=sum(each.length for each in alike),
            file_column=alike[0].file_column,
            batches=[batch for each in alike for batch in each.batches],
        )


def form_of(results: Results) -> list[Any]:
    """What has to be the same for the columns of two results to be joined without a change to their values."""
    forms = [
        (column.dtype, column.shape[1:]) if isinstance(column, np.ndarray) else getattr(column, "type", None)
        for column in results.columns.values()
    ]
    return [results.file_column, list(results.columns), forms]


def write_part(path: Path, part: NextPart) -> dict[str, int]:
    """Write the part through to the disk, under a name that appears when it is complete; returns size and checksum for the journal."""
    with whole_file(path, is_synced=True) as file:
        for schema, batches in groupby(map(_record_batch, _runs(part.results)), key=lambda pair: pair[0].schema):
            with pa.ipc.new_stream(file, schema) as writer:
                for batch, head in batches:
                    writer.write_batch(batch, custom_metadata={"head": json.dumps(head)})
    return _checksum(path)


def _record_batch(results: Results) -> tuple[Any, dict[str, Any]]:
    """The record batch, and its head with the facts that Arrow has no place for."""
    encoded = list(map(encode, results.columns.values()))
    head = {name: value for name, value in vars(results).items() if name not in ("rows", "columns")}
    arrays = [pa.array(results.rows), *(array for array, _ in encoded)]
    batch = pa.record_batch(arrays, names=list(map(str, range(len(arrays)))))
    return batch, {**head, "columns": [(name, facts) for name, (_, facts) in zip(results.columns, encoded)]}


def is_whole(path: Path, nbytes: int, crc: int) -> bool:
    """Whether the file is what was written. Reads all of it, but takes no memory."""
    try:
        return path.stat().st_size == nbytes and _checksum(path) == {"bytes": nbytes, "crc": crc}
    except OSError:
        return False


def read_part(path: Path) -> Iterator[Results]:
    """The part's results, some batches at a time. Arrays are views of the mapped file: what is not used is not read."""
    with pa.memory_map(os.fsencode(path)) as file:
        size = file.size()
        while file.tell() < size:
            with pa.ipc.open_stream(file) as stream:
                for batch, metadata in stream.iter_batches_with_custom_metadata():
                    (rows, *arrays), head = batch.columns, json.loads(metadata["head"])
                    columns = {name: decode(array, facts) for array, (name, facts) in zip(arrays, head.pop("columns"))}
                    yield Results(rows.to_numpy(), columns, **head)


def column_names(parts: Iterable[Results]) -> list[str]:
    """The names of all columns, in the order in which they first appear."""
    return list(dict.fromkeys(name for results in parts for name in results.columns))


def _checksum(path: Path) -> dict[str, int]:
    data: Any = np.memmap(path, np.uint8, "r")
    return {"bytes": len(data), "crc": zlib.crc32(data)}
