""".npy: one array. Rows go along the first dimension; row i of the output belongs to row i of the input."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.errors import UnreadableInput
from rankwise.offline.addresses import Address, Place, RemoteBytes
from rankwise.offline.array_writing import first_rows, write_column
from rankwise.offline.format import Format, Parts, Source
from rankwise.offline.identity import file_identity
from rankwise.offline.row_batches import Batch, Selection
from rankwise.offline.values import NUMBERS, Array, as_array
from rankwise.offline.workspace import PredictError


class NpySource(Source):
    """One array; the rows of a batch are read when the batch is asked for."""

    def __init__(self, path: Place, selection: Selection) -> None:
        self._array = _RemoteArray(path) if isinstance(path, Address) else _local(path)
        if not hasattr(self._array, "ndim"):  # numpy.load opens an archive, too
            raise UnreadableInput(f"{path} is an archive of arrays (.npz)", next=("save the one that is wanted: np.save(path, array)",))
        if self._array.ndim == 0:
            raise UnreadableInput(f"{path} holds a single number, not rows")
        if self._array.dtype.kind not in f"{NUMBERS}US":
            raise UnreadableInput(f"{path} holds {self._array.dtype}, where numbers or texts are wanted")
        self.total = len(self._array)
        self.identity = file_identity(path)

    def batches(self, size: int, first_row: int = 0, position: int | None = None) -> Iterator[Batch]:
        for start in range(first_row, len(self._array), size):
            rows = np.array(self._array[start : start + size])
            yield Batch(start, {"input": rows.tolist() if rows.dtype.kind in "US" else as_array(rows)}, len(rows))


def _local(path: Path) -> Any:
    """The array. It is mapped only to read its header: if another process cut a mapped file short, this process would end (SIGBUS)."""
    mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    return _LocalArray(path, mapped) if isinstance(mapped, np.memmap) and mapped.nbytes else mapped


class _LocalArray:
    """An array of which only the rows that are asked for are read."""

    def __init__(self, path: Path, mapped: Any) -> None:
        self.shape, self.dtype, self.ndim = mapped.shape, mapped.dtype, mapped.ndim
        self._path, self._start, self._is_by_row = path, mapped.offset, mapped.flags.c_contiguous

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(len(self))
        count, width = stop - start, math.prod(self.shape[1:])
        with self._path.open("rb", buffering=0) as file:
            if self._is_by_row:
                return self._read(file, start * width, count * width).reshape(count, *self.shape[1:])
            columns = np.stack([self._read(file, column * len(self) + start, count) for column in range(width)])
            return columns.reshape(*reversed(self.shape[1:]), count).transpose()

    def _read(self, file: Any, first: int, count: int) -> Array:
        """The `count` numbers from `first` on, in the order of the file."""
        found = np.empty(count, self.dtype)
        file.seek(self._start + first * self.dtype.itemsize)
        view, at = found.view(np.uint8).data, 0
        while at < len(view):
            if not (read := file.readinto(view[at:])):
                raise EOFError("it has become shorter since it was opened")
            at += read
        return found


class _RemoteArray:
    """An array at an address, of which only the rows that are asked for are fetched."""

    def __init__(self, address: Address) -> None:
        with address.open() as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            self.shape, is_by_column, self.dtype = read(file)
            self._start = file.tell()
        if is_by_column and len(self.shape) > 1:
            raise UnreadableInput(f"{address} is in Fortran's order, whose rows do not stand together", next=("copy it here first",))
        self.ndim, self._bytes = len(self.shape), RemoteBytes(address)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(len(self))
        each = self.dtype.itemsize * math.prod(self.shape[1:])
        data = self._bytes[self._start + start * each : self._start + stop * each]
        return np.frombuffer(data, self.dtype).reshape(stop - start, *self.shape[1:])


def write_npy(parts: Parts, total: int, path: Path) -> None:
    """Write the model's one output; raises if it has several."""
    outputs = first_rows(parts)
    if len(outputs) > 1:
        summary = f".npy holds one output, the model has {len(outputs)}: {', '.join(outputs)}"
        raise PredictError("RW834", summary, next=("write .parquet, or .safetensors where all are arrays",))
    name, like = next(iter(outputs.items()), ("", np.zeros((), np.float32)))
    with path.open("wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(like.dtype), "fortran_order": False, "shape": (total, *like.shape)}
        np.lib.format.write_array_header_1_0(file, header)
        write_column(file, parts(), name, like)


FORMAT = Format((".npy",), NpySource, write_npy, without_columns="one array", keeps_columns=False)
