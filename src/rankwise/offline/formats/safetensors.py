""".safetensors: one column per tensor, all of the same number of rows. Row i of the output belongs to row i of the input."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.errors import UnreadableInput
from rankwise.offline.addresses import Address, Place, RemoteBytes
from rankwise.offline.array_writing import first_rows, write_column
from rankwise.offline.batches import Batch, Selection, split
from rankwise.offline.format import Format, Parts
from rankwise.offline.identity import file_identity
from rankwise.offline.lazy import ml_dtypes
from rankwise.offline.workspace import PredictError
from rankwise.weights.records import Damaged, TensorRecord
from rankwise.weights.safetensors_file import read_safetensors

Array = np.ndarray[Any, Any]
_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL", "complex64": "C64",
}  # fmt: skip


class SafetensorsSource:
    """A batch is read when it is used."""

    is_recognisable = True

    def __init__(self, path: Place, selection: Selection) -> None:
        try:
            records = (read_safetensors(Path(path.name), RemoteBytes(path)) if isinstance(path, Address) else read_safetensors(path)).tree
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
            rows = file.read((stop - start) * each)
        return _numbers(rows, record.dtype).reshape(stop - start, *record.shape[1:])


def _numbers(data: bytes, dtype: str) -> Array:
    """bfloat16 and the kinds of float8, which numpy and files do not know, as float32, which holds each of their values exactly."""
    if dtype == "bfloat16" or dtype.startswith("float8"):
        return np.frombuffer(data, getattr(ml_dtypes, dtype)).astype(np.float32)
    rows = np.frombuffer(data, np.dtype(dtype).newbyteorder("<"))
    return rows.astype(rows.dtype.newbyteorder("="), copy=False)


def write_safetensors(parts: Parts, total: int, path: Path) -> None:
    """One tensor per output; each is written in a pass of its own."""
    outputs = dict(sorted(first_rows(parts).items(), key=lambda item: (-item[1].dtype.itemsize, item[0])))
    header: dict[str, Any] = {}
    at = 0
    for name, like in outputs.items():
        if like.dtype.name not in _NAMES or name == "__metadata__":
            why = "the name has a meaning of its own there" if like.dtype.name in _NAMES else f"it is {like.dtype}"
            raise PredictError("RW834", f"safetensors cannot hold the output {name!r}", why=why, next=("write .npy or .jsonl",))
        nbytes = total * like.nbytes
        header[name] = {"dtype": _NAMES[like.dtype.name], "shape": [total, *like.shape], "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, like in outputs.items():
            write_column(file, parts(), name, like)


FORMAT = Format((".safetensors",), SafetensorsSource, write_safetensors)
