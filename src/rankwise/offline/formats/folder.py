"""A folder of files: one row each, in the order of their names. Workers read the files, not the parent."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.errors import UnreadableInput
from rankwise.offline.addresses import Address, Place
from rankwise.offline.columns import is_number, is_tensors, tensors
from rankwise.offline.format import Format, Parts, Source
from rankwise.offline.identity import folder_identity
from rankwise.offline.lazy import pa
from rankwise.offline.parts import column_names
from rankwise.offline.row_batches import FILE_COLUMN, Batch, Column, Selection, is_arrow
from rankwise.offline.text_lines import entries, json_text
from rankwise.offline.values import is_utf8
from rankwise.offline.workspace import PredictError


class FolderSource(Source):
    """All files below the folder, without names that begin with a dot, and without Spark's mark that a folder is complete."""

    def __init__(self, path: Place, selection: Selection) -> None:
        self._path = path if isinstance(path, Address) else path.resolve()
        self._names = _files_below(self._path)
        if not self._names:
            raise UnreadableInput(f"there is no file in {path}")
        self.total = len(self._names)
        self.identity = folder_identity(self._path, self._names)

    def batches(self, size: int, first_row: int = 0, position: int | None = None) -> Iterator[Batch]:
        for start in range(first_row, len(self._names), size):
            names = self._names[start : start + size]
            paths = [self._path.below(name) if isinstance(self._path, Address) else str(self._path / name) for name in names]
            broken = {i: "its name is not UTF-8" for i, name in enumerate(names) if not is_utf8(name)}
            if not isinstance(self._path, Address):  # reading a pipe waits for a writer, and a device may have no end
                broken |= {i: "it is a pipe, a device or a link to nothing" for i, path in enumerate(paths) if not os.path.isfile(path)}
            yield Batch(start, {FILE_COLUMN: paths}, len(names), broken, {"file": names})


def _files_below(folder: Place) -> list[str]:
    if isinstance(folder, Address):
        names = [name for name, _ in folder.files()]
    else:
        names = list(_names_below(os.fspath(folder), "", frozenset()))
    return sorted(name for name in names if not any(part.startswith(".") or part == "_SUCCESS" for part in name.split("/")))


def _names_below(folder: str, prefix: str, above: frozenset[str]) -> Iterator[str]:
    """Follow links to folders, which many datasets are made of, but not back to a folder that we are in. A folder that cannot be listed
    raises, or its files would be missing without a word."""
    above |= {os.path.realpath(folder)}
    with os.scandir(folder) as found:
        for entry in found:
            if not os.path.isdir(entry.path):
                yield prefix + entry.name
            elif not entry.name.startswith(".") and os.path.realpath(entry.path) not in above:
                yield from _names_below(entry.path, f"{prefix}{entry.name}/", above)


def write_folder(parts: Parts, total: int, path: Path) -> None:
    """Output for input `a/b.jpg` is `a/b.jpg.npy`, for row 7 `00000007.npy`; several outputs have their names in front of `.npy`.

    Numbers and arrays of numbers are `.npy`, everything else is `.json`; a null has no file.
    """
    path.mkdir()
    files = next((part.file_column for part in parts() if part.file_column), "")
    names = [name for name in column_names(parts()) if name != files]
    for part in parts():
        stems = part.columns[files] if files in part.columns else [f"{row:08}" for row in part.rows]
        for name in names:
            middle = f".{name.replace('/', '%2F')}" if len(names) > 1 else ""
            for stem, value in zip(stems, _values(part.columns.get(name, []))):
                if value is not None:
                    _write(path, f"{stem}{middle}", value)


def _values(column: Column) -> Iterable[Any]:
    """One value per row; arrays and numbers keep their types."""
    if not is_arrow(column):
        return list(column)
    if is_tensors(column):
        return tensors(column)
    if not is_number(column.type):
        return entries(column)
    numbers = column.fill_null(False if pa.types.is_boolean(column.type) else 0).to_numpy(zero_copy_only=False)
    return [number if valid else None for number, valid in zip(numbers, column.is_valid().to_pylist())]


def _write(folder: Path, stem: str, value: Any) -> None:
    array = np.asarray(None if isinstance(value, (list, dict, str)) else value)
    is_array = array.dtype != object  # an integer beyond 64 bits becomes an object as well
    target = folder / f"{stem}.{'npy' if is_array else 'json'}"
    if os.path.isabs(stem) or ".." in Path(stem).parts:
        raise PredictError("RW834", f"{stem} would be written outside the folder")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            if is_array:
                np.save(file, array)
            else:
                file.write(json_text(value).encode())
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        why = f"{target.relative_to(folder)} is there already, for another row or output"
        raise PredictError("RW834", f"{stem} has no file of its own in the folder", why=why) from error


FORMAT = Format(("",), FolderSource, write_folder, without_columns="a folder of files")
