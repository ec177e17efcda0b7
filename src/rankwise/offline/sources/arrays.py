""".npy and .safetensors: mapped, so a batch is read when it is used. Rows go along the first dimension."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.errors import UnreadableInput
from rankwise.offline.batches import Batch, Column, Selection, split
from rankwise.offline.sources.file_identity import file_identity
from rankwise.offline.sources.small_floats import as_float32, holder_of
from rankwise.offline.values import NUMBERS
from rankwise.weights.records import Damaged, TensorRecord
from rankwise.weights.safetensors_file import read_safetensors

Array = np.ndarray[Any, Any]


class NpySource:
    """One array."""

    is_recognisable = True

    def __init__(self, path: Path) -> None:
        self._array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        if self._array.ndim == 0:
            raise UnreadableInput(f"{path} holds a single number, not rows")
        if self._array.dtype.kind not in f"{NUMBERS}US":
            raise UnreadableInput(f"{path} holds {self._array.dtype}, where numbers or texts are wanted")
        self.total: int | None = len(self._array)
        self.identity = file_identity(path)

    def batches(self, size: int, first_row: int = 0, position: int | None = None) -> Iterator[Batch]:
        for start in range(first_row, len(self._array), size):
            rows = np.array(self._array[start : start + size])
            yield Batch(start, {"input": _native(rows)}, len(rows))


class SafetensorsSource:
    """One column per tensor, all of the same number of rows."""

    is_recognisable = True

    def __init__(self, path: Path, selection: Selection) -> None:
        try:
            records = read_safetensors(path).tree
        except Damaged as error:
            raise UnreadableInput(f"{path} is damaged", why=str(error)) from error
        self._chosen = selection.of(sorted(records), path.name)
        self._records: dict[str, TensorRecord] = {name: records[name] for part in self._chosen for name in part}
        lengths = {name: record.shape[0] if record.shape else -1 for name, record in self._records.items()}
        if len(set(lengths.values())) != 1 or -1 in lengths.values():
            raise UnreadableInput(f"the tensors of {path} have different numbers of rows", why=str(lengths)[:300])
        self.total: int | None = next(iter(lengths.values()))
        self._path = path
        self.identity = file_identity(path)

    def batches(self, size: int, first_row: int = 0, position: int | None = None) -> Iterator[Batch]:
        for start in range(first_row, self.total or 0, size):
            piece = {name: self._rows(record, start, min(start + size, self.total or 0)) for name, record in self._records.items()}
            columns, kept = split(piece, self._chosen)
            yield Batch(start, columns, len(next(iter(piece.values()))), kept=kept)

    def _rows(self, record: TensorRecord, start: int, stop: int) -> Array:
        assert record.storage is not None
        each = record.nbytes // record.shape[0] if record.shape[0] else 0
        with self._path.open("rb") as file:
            file.seek(record.storage.offset + start * each)
            rows = np.frombuffer(file.read((stop - start) * each), holder_of(record.dtype))
        return as_float32(rows.reshape(stop - start, *record.shape[1:]), record.dtype)


def _native(rows: Array) -> Column:
    """In this machine's order of bytes, the only one torch knows; texts as a list."""
    return rows.tolist() if rows.dtype.kind in "US" else rows.astype(rows.dtype.newbyteorder("="), copy=False)
