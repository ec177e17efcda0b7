"""A folder of files: one row each, in the order of their names. Workers read the files, not the parent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rankwise.errors import UnreadableInput
from rankwise.offline.batches import Batch
from rankwise.offline.sources.file_identity import folder_identity
from rankwise.offline.values import is_utf8

FILE_COLUMN = "__file__"


class FolderSource:
    """All files below the folder; those whose name begins with a dot are left out."""

    is_recognisable = True

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()
        self._names = sorted(_files_below(self._path))
        if not self._names:
            raise UnreadableInput(f"there is no file in {path}")
        self.total: int | None = len(self._names)
        self.identity = folder_identity(self._path, self._names)

    def batches(self, size: int, first_row: int = 0, position: int | None = None) -> Iterator[Batch]:
        for start in range(first_row, len(self._names), size):
            names = self._names[start : start + size]
            paths = [str(self._path / name) for name in names]
            broken = {i: "its name is not UTF-8" for i, name in enumerate(names) if not is_utf8(name)}
            yield Batch(start, {FILE_COLUMN: paths}, len(names), broken, {"file": names})


def _files_below(folder: Path) -> Iterator[str]:
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if not name.startswith("."):
                yield os.path.relpath(os.path.join(place, name), folder)
