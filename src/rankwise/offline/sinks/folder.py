"""A folder with one .npy file per row and output, named after the input file or the row."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.offline.batches import Column, is_arrow
from rankwise.offline.parts import Results
from rankwise.offline.sinks.entries import entries, json_text
from rankwise.offline.sinks.groups import column_names
from rankwise.offline.sources.tables import arrow, is_tensors, tensors
from rankwise.offline.workspace import PredictError


def write_folder(parts: Callable[[], Iterable[Results]], total: int, path: Path) -> None:
    """Input `a/b.jpg` becomes `a/b.jpg.npy`, row 7 `00000007.npy`; several outputs have their names in front of `.npy`.

    What is no number or array of numbers is a `.json` file; a null is none at all.
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
    """One per row: arrays and numbers with the type they have."""
    if not is_arrow(column):
        return list(column)
    if is_tensors(column):
        return tensors(column)
    types = arrow("types")
    if not (types.is_integer(column.type) or types.is_floating(column.type) or types.is_boolean(column.type)):
        return entries(column)
    numbers = column.fill_null(False if types.is_boolean(column.type) else 0).to_numpy(zero_copy_only=False)
    return [number if valid else None for number, valid in zip(numbers, column.is_valid().to_pylist())]


def _write(folder: Path, stem: str, value: Any) -> None:
    array = np.asarray(None if isinstance(value, (list, dict, str)) else value)
    is_array = array.dtype != object  # which is also what an integer beyond 64 bits becomes
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
