"""Opens an input with the reader of its format, and gives its batches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankwise.errors import UnreadableInput, UsageError
from rankwise.offline.addresses import Place, path_or_address
from rankwise.offline.dataset import DatasetSource
from rankwise.offline.format import Source, format_to_read
from rankwise.offline.lazy import pa
from rankwise.offline.row_batches import Batch, Selection


def open_source(given: Any, selection: Selection) -> Source:
    """The reader for a path or an address, or for a dataset."""
    if not isinstance(given, (str, os.PathLike)):
        return DatasetSource(given, selection)
    if not str(given):  # Path("") would be this folder
        raise UnreadableInput("the path of the input is empty", next=("check the path",))
    path = path_or_address(given)
    try:
        is_there = path.exists()
    except OSError as error:  # the server cannot be reached, or refuses us
        raise _unreadable(path, error) from error
    if not is_there:
        raise UnreadableInput(f"there is no input {path}", next=("check the path",))
    if isinstance(path, Path) and not (path.is_file() or path.is_dir()):  # reading it might never end, and it cannot be read twice
        raise UnreadableInput(f"{path} is a pipe or a device", next=("write what comes out of it to a file, and give that",))
    kind = format_to_read(path)
    if (selection.columns or selection.keep) and kind.without_columns:
        raise UsageError(f"{path} is {kind.without_columns} and has no columns", next=(_without_columns(path),))
    try:
        return kind.read(path, selection)
    except (*_UNREADABLE, pa.ArrowException) as error:
        raise _unreadable(path, error) from error


def _without_columns(path: Place) -> str:
    """What to do instead. A folder is one row per file, even if other programs read it as a table in parts."""
    return "leave out --columns and --keep" + (", or give one file of it" if path.is_dir() else "")


def batches_of(source: Source, size: int, first_row: int = 0, position: int | None = None) -> Iterator[Batch]:
    """The batches of an input. If the rest of a file cannot be read, the error says from which row on; errors of datasets pass."""
    row, kinds = first_row, (*_UNREADABLE, pa.ArrowException)  # looked up now: at the interpreter's exit it may be too late
    try:
        for batch in source.batches(size, first_row, position):
            yield batch
            row = batch.first_row + batch.length
    except kinds as error:
        if "path" not in source.identity:
            raise
        raise _unreadable(source.identity["path"], error, f" from row {row:,} on") from error


_UNREADABLE = (OSError, ValueError, KeyError, EOFError, NotImplementedError)  # numpy's errors are among these, and most of pyarrow's


def _unreadable(path: Any, error: BaseException, where: str = "") -> UnreadableInput:
    steps = ("see whether another program can read it",) if not isinstance(error, PermissionError) else ("see who may read it: ls -l",)
    return UnreadableInput(f"{path} cannot be read{where}", why=f"{type(error).__name__}: {str(error)[:300]}", next=steps)
