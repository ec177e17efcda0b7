""".safetensors: one column per tensor, all of the same number of rows. Row i of the output belongs to row i of the input."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rankwise.errors import UnreadableInput
from rankwise.offline.addresses import Address, Place, RemoteBytes
from rankwise.offline.array_writing import first_rows, write_column
from rankwise.offline.format import Format, Parts, Source
from rankwise.offline.identity import file_identity
from rankwise.offline.lazy import ml_dtypes
from rankwise.offline.row_batches import Batch, Selection
from rankwise.offline.values import Array, as_array
from rankwise.offline.workspace import PredictError
from rankwise.weights.safetensors_file import NAMES, header_of, read_safetensors
from rankwise.weights.tensor_records import Damaged, TensorRecord


class SafetensorsSource(Source):
    """Tensors as columns; the rows of a batch are read when the batch is asked for."""

    def __init__(self, path: Place, selection: Selection) -> None:
        try:
            records = (read_safetensors(Path(path.name), RemoteBytes(path)) if isinstance(path, Address) else read_safetensors(path)).tree
        except Damaged as error:
            raise UnreadableInput(f"{path} is damaged", why=str(error)) from error
        self._chosen = selection.of(sorted(records), path.name)
        self._records: dict[str, TensorRecord] = {name: records[name] for part in self._chosen for name in part}
        if unread := next((f"{name!r} {record.unreadable}" for name, record in self._records.items() if record.unreadable), ""):
            raise UnreadableInput(f"a tensor of {path} cannot be read", why=unread, next=("choose others: --columns",))
        lengths = {name: record.shape[0] if record.shape else -1 for name, record in self._records.items()}
        if len(set(lengths.values())) != 1 or -1 in lengths.values():
            raise UnreadableInput(f"the tensors of {path} have different numbers of rows", why=str(lengths)[:300])
        self.total = next(iter(lengths.values()))
        self._path = path
        self.identity = file_identity(path)

    def batches(self, size: int, first_row: int = 0, position: int | None = None) -> Iterator[Batch]:
        for start in range(first_row, self.total or 0, size):
            piece = {name: self._rows(record, start, min(start + size, self.total or 0)) for name, record in self._records.items()}
            columns, kept = ({name: piece[name] for name in names} for names in self._chosen)
            yield Batch(start, columns, len(next(iter(piece.values()))), kept=kept)

    def _rows(self, record: TensorRecord, start: int, stop: int) -> Array:
        assert record.storage is not None
        each = record.nbytes // record.shape[0] if record.shape[0] else 0
        with self._path.open("rb") as file:
            file.seek(record.storage.offset + start * each)
            rows = file.read((stop - start) * each)
        return _numbers(rows, record.dtype).reshape(stop - start, *record.shape[1:])


def _numbers(data: bytes, dtype: str) -> Array:
    """The numbers; bfloat16 and float8, which numpy and files do not know, become float32, which holds each of their values exactly."""
    if dtype == "bfloat16" or dtype.startswith("float8"):
        return np.frombuffer(data, getattr(ml_dtypes, dtype)).astype(np.float32)
    return as_array(np.frombuffer(data, np.dtype(dtype).newbyteorder("<")))


def write_safetensors(parts: Parts, total: int, path: Path) -> None:
    """Write one tensor per output, each in a pass of its own over the results."""
    outputs = dict(sorted(first_rows(parts).items(), key=lambda item: (-item[1].dtype.itemsize, item[0])))
    for name, like in outputs.items():
        if like.dtype.name not in NAMES or name == "__metadata__":
            why = "the name has a meaning of its own there" if like.dtype.name in NAMES else f"it is {like.dtype}"
            raise PredictError("RW834", f"safetensors cannot hold the output {name!r}", why=why, next=("write .npy or .jsonl",))
    with path.open("wb") as file:
        file.write(header_of({name: (like.dtype.name, (total, *like.shape)) for name, like in outputs.items()}))
        for name, like in outputs.items():
            write_column(file, parts(), name, like)


FORMAT = Format((".safetensors",), SafetensorsSource, write_safetensors)
