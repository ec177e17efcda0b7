"""What the tests of readers of text share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rankwise.offline.row_batches import Batch, Selection
from rankwise.offline.source import open_source

X, NAME = Selection(("x",)), Selection(("x",), ("name",))


def read(path: Path, content: bytes, selection: Selection = X, size: int = 10_000) -> Batch:
    path.write_bytes(content)
    (batch,) = open_source(path, selection).batches(size)
    return batch


def good(batch: Batch, name: str = "x") -> list[Any]:
    column = (batch.columns | batch.kept)[name]
    return [value for i, value in enumerate(column) if i not in batch.broken]
