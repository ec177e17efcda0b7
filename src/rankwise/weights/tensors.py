"""From a record to a torch tensor that lies in the mapped file, read when it is used; numbers that a smaller dtype cannot hold."""

from __future__ import annotations

import functools
import math
import os
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch

from rankwise.weights.files import stamp_of
from rankwise.weights.records import ITEM_SIZES, CheckpointError, Chunk, Damaged, Extent, Replaced, TensorRecord
from rankwise.weights.torch_file import read_embedded

_CRC_STEP = 8 << 20
_TRIES = 20
P = ParamSpec("P")
R = TypeVar("R")
_STEP = 16 << 20  # elements looked at together, so that it costs time but little memory


@dataclass
class TensorReader:
    """Makes tensors of records. The files are mapped privately: writing to a tensor never changes a checkpoint."""

    verify: bool = True
    _storages: dict[Path, tuple[torch.UntypedStorage, tuple[int, ...]]] = field(default_factory=dict)  # with the file's stamp
    _verified: set[Extent] = field(default_factory=set)

    def check(self, name: str, record: TensorRecord) -> None:
        """Raise what `read` would raise, without taking memory."""
        if record.unreadable:
            raise CheckpointError("RW740", f"{name} cannot be read", why=record.unreadable)
        torch_dtype(record.dtype)
        try:
            if math.prod(max(size, 1) for size in record.shape) >= 1 << 63:
                raise Damaged(f"{list(record.shape)[:16]} is not a shape")
            for part in self._parts(name, record):
                if part.numel:
                    self._check(part)
        except Damaged as error:
            summary = f"{name} cannot be read, its bytes are damaged"
            raise CheckpointError("RW732", summary, why=str(error)) from error

    def read(self, name: str, record: TensorRecord) -> torch.Tensor:
        """The tensor; it shares the mapped file's memory where its bytes lie aligned, which torch.save and safetensors see to."""
        self.check(name, record)
        if record.numel == 0:
            return torch.empty(record.shape, dtype=torch_dtype(record.dtype))
        parts = self._parts(name, record)
        if len(parts) == 1:
            return self._strided(parts[0])
        whole = torch.empty(record.shape, dtype=torch_dtype(record.dtype))
        for chunk, part in zip(record.chunks, parts):
            if part.numel:
                box = tuple(slice(offset, offset + size) for offset, size in zip(chunk.offsets, chunk.sizes))
                (whole.view(-1) if len(box) == 1 else whole)[box] = self._strided(part)
        return whole

    @property
    def verified_bytes(self) -> int:
        """How many bytes were compared with a checksum so far."""
        return sum(extent.nbytes for extent in self._verified)

    def unchecked_bytes(self, name: str, record: TensorRecord) -> int:
        """How many bytes of the tensor have no checksum: a flipped bit there cannot be seen."""
        return sum(part.nbytes for part in self._parts(name, record) if part.storage is not None and part.storage not in self._verified)

    def _parts(self, name: str, record: TensorRecord) -> list[TensorRecord]:
        """The record itself, or those of its chunks, each of which is looked at before memory is taken for the whole."""
        parts = [self._part(chunk) for chunk in record.chunks]
        for chunk, part in zip(record.chunks, parts):
            if (part.shape, part.dtype) != (chunk.sizes, record.dtype):
                raise Damaged(f"a part of {name} is {part.dtype}{list(part.shape)} where {record.dtype}{list(chunk.sizes)} was declared")
        return parts or [record]

    def _part(self, chunk: Chunk) -> TensorRecord:
        if chunk.part is not None:
            return chunk.part
        assert chunk.extent is not None
        found = read_embedded(chunk.extent, self._bytes(chunk.extent))
        if not isinstance(found, TensorRecord):
            raise Damaged(f"there is no tensor at byte {chunk.extent.offset:,} of {chunk.extent.path.name}")
        return found

    def _strided(self, record: TensorRecord) -> torch.Tensor:
        extent = record.storage
        assert extent is not None
        part = self._storage(extent)[extent.offset : extent.offset + extent.nbytes]
        if extent.offset % ITEM_SIZES[record.dtype]:  # only torch's old format: not every processor reads numbers at odd addresses
            part = part.clone()
        empty = torch.empty(0, dtype=torch_dtype(record.dtype))
        return empty.set_(part, record.first, record.shape, record.strides)

    def _storage(self, extent: Extent) -> torch.UntypedStorage:
        if extent.path not in self._storages:
            self._storages[extent.path] = _mapped(extent.path)
        storage, stamp = self._storages[extent.path]
        if extent.stamp not in (None, stamp):
            raise Replaced(extent.path)
        return storage

    def _bytes(self, extent: Extent) -> Any:
        return torch.empty(0, dtype=torch.uint8).set_(self._storage(extent)).numpy().data

    def _check(self, record: TensorRecord) -> None:
        """Compare with the CRC the writer left, piece by piece, so that it costs time but no memory."""
        extent = record.storage
        if extent is None or extent.offset + extent.nbytes > self._storage(extent).nbytes():
            raise Damaged("the file has become shorter since it was opened")
        if not self.verify or extent.crc is None or extent in self._verified:
            return
        crc, end = 0, extent.offset + extent.nbytes
        content = self._bytes(extent)
        for start in range(extent.offset, end, _CRC_STEP):
            crc = zlib.crc32(content[start : min(start + _CRC_STEP, end)], crc)
        if crc != extent.crc:
            raise Damaged(f"{extent.nbytes:,} bytes at {extent.offset:,} of {extent.path.name} are not what was written (CRC-32)")
        self._verified.add(extent)


def begin_again_if_replaced(work: Callable[P, R]) -> Callable[P, R]:
    """Whoever replaces a checkpoint by renaming may do so between the reading of its header and that of its tensors."""

    @functools.wraps(work)
    def tried(*args: P.args, **options: P.kwargs) -> R:
        for _ in range(_TRIES):
            with suppress(Replaced):
                return work(*args, **options)
        return work(*args, **options)

    return tried


def _mapped(path: Path) -> tuple[torch.UntypedStorage, tuple[int, ...]]:
    try:
        with path.open("rb") as file:  # by its number: torch takes no name that is not UTF-8
            facts = os.fstat(file.fileno())
            storage = torch.UntypedStorage.from_file(f"/proc/self/fd/{file.fileno()}", False, facts.st_size)
            return storage, stamp_of(facts)  # type: ignore[return-value]
    except FileNotFoundError as error:  # just now it was there
        raise Replaced(path) from error


def torch_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise CheckpointError("RW740", f"this torch has no dtype {name}")
    return dtype


def check_range(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    """Raise if a number of `tensor` would become infinite, or another one than rounding makes of it, in `dtype`."""
    if tensor.dtype == dtype or _holds_all(tensor.dtype, dtype):
        return
    if tensor.is_complex() and dtype.is_complex:
        tensor, dtype = torch.view_as_real(tensor.detach().resolve_conj()), dtype.to_real()
    for part in torch.split(tensor.detach().reshape(-1), _STEP):
        narrow = part.to(dtype)
        lost = _lost(part, narrow)
        if bool(lost.any()):
            worst = part[lost.nonzero()[0, 0]]
            kind = str(dtype).removeprefix("torch.")
            raise CheckpointError(
                "RW734",
                f"{name} holds {worst.item():.6g}, which {kind} cannot hold",
                why=f"it is {str(tensor.dtype).removeprefix('torch.')} in the checkpoint",
                next=("build the model in that dtype, or give dtype= a wider one",),
            )


def _holds_all(dtype: torch.dtype, wanted: torch.dtype) -> bool:
    if dtype.is_floating_point or dtype.is_complex:
        return wanted.itemsize > 1 and torch.finfo(wanted).max >= torch.finfo(dtype).max  # a float8 may have no infinity, zero or sign
    if dtype == torch.bool:
        return True
    return torch.iinfo(wanted).max >= torch.iinfo(dtype).max and torch.iinfo(wanted).min <= torch.iinfo(dtype).min


def _lost(part: torch.Tensor, narrow: torch.Tensor) -> torch.Tensor:
    if not (part.dtype.is_floating_point or part.dtype.is_complex):
        return (narrow.to(part.dtype) != part) | (_negative(narrow) != _negative(part))  # 200 in int8 is -56, which is 200 again in uint8
    if narrow.itemsize > 1 and part.itemsize > 1:
        return narrow.isfinite() != part.isfinite()
    kind = torch.finfo(narrow.dtype)
    before, after = part.to(torch.float64), narrow.to(torch.float64)  # float8 knows neither isfinite nor a difference
    is_off = (after - before).abs() > kind.eps * before.abs()  # 1e6 becomes 448, or -1 becomes 1
    is_other = is_off & (before.abs() > kind.smallest_normal)
    return (after.isfinite() != before.isfinite()) | is_other


def _negative(whole: torch.Tensor) -> torch.Tensor:
    return whole < 0 if whole.dtype.is_signed else torch.zeros(whole.shape, dtype=torch.bool, device=whole.device)
