"""What a reader is, and which one an input wants."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from rankwise.errors import UnreadableInput, UsageError
from rankwise.offline.batches import Batch, Selection

_KNOWN = ".parquet, .arrow, .jsonl, .csv, .tsv, .npy, .safetensors and folders of files"


class Source(Protocol):
    """Rows of an input. `total` is None where counting would mean reading everything."""

    total: int | None
    identity: dict[str, Any]  # what tells this input from another one
    is_recognisable: bool  # whether it also tells it from itself after a change; if not, equal identities are no proof of equal rows

    def batches(self, size: int, first_row: int = 0, position: int | None = None) -> Iterator[Batch]:
        """Batches of `size` rows from `first_row` on; `position` is what an earlier batch said, where the reader gave one."""
        ...


def open_source(given: Any, selection: Selection) -> Source:
    """The reader for a path, or for a dataset."""
    if not isinstance(given, (str, os.PathLike)):
        from rankwise.offline.sources.dataset import DatasetSource

        return DatasetSource(given, selection)
    path = Path(given)
    if (selection.columns or selection.keep) and (path.is_dir() or path.suffix.lower() == ".npy"):
        what = "a folder of files" if path.is_dir() else "one array"
        raise UsageError(f"{path} is {what} and has no columns", next=("leave out --columns and --keep",))
    if path.is_dir():
        from rankwise.offline.sources.folder import FolderSource

        return FolderSource(path)
    if not path.is_file():
        raise UnreadableInput(f"there is no input {path}", next=("check the path",))
    try:
        return _of_file(path, selection)
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error


def batches_of(source: Source, size: int, first_row: int = 0, position: int | None = None) -> Iterator[Batch]:
    """The batches of an input; where the rest of a file cannot be read, from which row on. A dataset's own exceptions are its own."""
    row = first_row
    try:
        for batch in source.batches(size, first_row, position):
            yield batch
            row = batch.first_row + batch.length
    except _UNREADABLE as error:
        if "path" not in source.identity:
            raise
        raise _unreadable(source.identity["path"], error, f" from row {row:,} on") from error


_UNREADABLE = (OSError, ValueError, KeyError, EOFError, NotImplementedError)  # pyarrow's and numpy's errors are among these


def _unreadable(path: Any, error: BaseException, where: str = "") -> UnreadableInput:
    steps = ("see whether another program can read it",) if not isinstance(error, PermissionError) else ("see who may read it: ls -l",)
    return UnreadableInput(f"{path} cannot be read{where}", why=f"{type(error).__name__}: {str(error)[:300]}", next=steps)


def _of_file(path: Path, selection: Selection) -> Source:
    suffix = path.suffix.lower()
    if suffix in (".parquet", ".pq", ".arrow", ".feather", ".ipc"):
        from rankwise.offline.sources.tables import ArrowSource, ParquetSource

        return (ParquetSource if suffix in (".parquet", ".pq") else ArrowSource)(path, selection)
    if suffix in (".jsonl", ".ndjson", ".csv", ".tsv"):
        from rankwise.offline.sources.delimited import CsvSource
        from rankwise.offline.sources.json_lines import JsonLinesSource

        return (JsonLinesSource if suffix in (".jsonl", ".ndjson") else CsvSource)(path, selection)
    if suffix in (".npy", ".safetensors"):
        from rankwise.offline.sources.arrays import NpySource, SafetensorsSource

        return NpySource(path) if suffix == ".npy" else SafetensorsSource(path, selection)
    raise UsageError(f"no reader for {path.name}", why=f"known are {_KNOWN}")
