"""A folder of files: one row each, in the order of their names. Workers read the files, not the parent."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from rankwise.errors import UnreadableInput
from rankwise.predict.batches import Batch

FILE_COLUMN = "__file__"


class FolderSource:
    """All files below the folder; those whose name begins with a dot are left out."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()
        self._names = sorted(_files_below(self._path))
        if not self._names:
            raise UnreadableInput(f"there is no file in {path}")
        self.total: int | None = len(self._names)
        digest = hashlib.sha256("\0".join(self._names).encode(errors="surrogateescape")).hexdigest()
        self.identity = {"path": str(self._path), "files": len(self._names), "names": digest}

    def batches(self, size: int, first_row: int = 0, position: int | None = None) -> Iterator[Batch]:
        for start in range(first_row, len(self._names), size):
            names = self._names[start : start + size]
            paths = [str(self._path / name) for name in names]
            yield Batch(start, {FILE_COLUMN: paths}, len(names), kept={"file": names})


def _files_below(folder: Path) -> Iterator[str]:
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if not name.startswith("."):
                yield os.path.relpath(os.path.join(place, name), folder)
