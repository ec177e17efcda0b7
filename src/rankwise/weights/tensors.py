"""Reads a record's tensor from its file; finds numbers that a smaller dtype cannot hold."""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch

from rankwise.weights.plain_files import FileBytes, unreadable
from rankwise.weights.sharing import write_into
from rankwise.weights.tensor_records import ITEM_SIZES, CheckpointError, Damaged, Extent, Replaced, TensorPiece, TensorRecord, contiguous
from rankwise.weights.torch_file import read_embedded

_CRC_STEP = 256 << 10
_MOST_OPEN = 256  # files; a process may open some thousand
_TRIES = 20
P = ParamSpec("P")
R = TypeVar("R")
_STEP = 16 << 20  # elements that are looked at together, which takes time but little memory


@dataclass
class TensorReader:
    """Makes tensors of records, each in memory of its own."""

    verify: bool = True
    _files: dict[Path, FileBytes] = field(default_factory=dict)
    _lent: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    _verified: set[Extent] = field(default_factory=set)

    def check(self, name: str, record: TensorRecord) -> None:
        """Raise what `read` would raise, without taking memory."""
        if record.unreadable:
            raise CheckpointError("RW740", f"{name} cannot be read", why=record.unreadable)
        torch_dtype(record.dtype)
        with _told_of(name):
            if math.prod(max(size, 1) for size in record.shape) >= 1 << 63:
                raise Damaged(f"{list(record.shape)[:16]} is not a shape")
            for part in self._parts(name, record):
                if part.numel:
                    self._check(part)

    def read(self, name: str, record: TensorRecord, is_lent: bool = False) -> torch.Tensor:
        """The tensor. With `is_lent`, it lies in memory that the next such read overwrites, which saves asking for new memory."""
        self.check(name, record)
        with _told_of(name):
            parts = self._parts(name, record)
            if len(parts) == 1 and parts[0].strides != contiguous(parts[0].shape) and parts[0].numel:
                return self._strided(parts[0])  # not made whole: an expanded tensor may be larger than all memory
            if is_lent and self._lent.numel() < record.nbytes:
                self._lent = torch.empty(record.nbytes, dtype=torch.uint8)
            dtype = torch_dtype(record.dtype)
            whole = self._lent[: record.nbytes].view(dtype).view(record.shape) if is_lent else torch.empty(record.shape, dtype=dtype)
            self._fill(whole, record, parts)
            return whole

    def read_into(self, target: torch.Tensor, name: str, record: TensorRecord) -> None:
        """Read into a tensor of a model, without another copy if its dtype and memory are as in the file."""
        if target.dtype != torch_dtype(record.dtype) or target.shape != record.shape or not _is_plain_memory(target):
            write_into(target, self.read(name, record, is_lent=True).reshape(target.shape))
            return
        self.check(name, record)
        with _told_of(name):
            self._fill(target.detach(), record, self._parts(name, record))
        torch.autograd.graph.increment_version(target)

    def read_all(self, named: Mapping[str, str], tensors: Mapping[str, TensorRecord]) -> dict[str, torch.Tensor]:
        """Read the tensors under these names (each with its name in the checkpoint). Names of one tensor there share one tensor here."""
        found: dict[object, torch.Tensor] = {}
        for theirs in named.values():
            if (place := tensors[theirs].place or theirs) not in found:
                found[place] = self.read(theirs, tensors[theirs])
        return {name: found[tensors[theirs].place or theirs] for name, theirs in named.items()}

    def _fill(self, whole: torch.Tensor, record: TensorRecord, parts: list[TensorRecord]) -> None:
        boxes = [tuple(slice(offset, offset + size) for offset, size in zip(chunk.offsets, chunk.sizes)) for chunk in record.chunks]
        for box, part in zip(boxes or [()], parts):
            place = (whole.view(-1) if len(box) == 1 else whole)[box]
            if not part.numel:
                continue
            if place.is_contiguous() and part.strides == contiguous(part.shape):
                self._fill_plain(place, part)
            else:
                place.copy_(self._strided(part))

    def _fill_plain(self, place: torch.Tensor, part: TensorRecord) -> None:
        assert part.storage is not None
        start = part.storage.offset + part.first * ITEM_SIZES[part.dtype]
        self._file(part.storage).read_into(place.reshape(-1).view(torch.uint8).numpy(), start)

    def check_same(self) -> None:
        """Raise if a file is not what it was when its header was read, as far as times and sizes tell."""
        for file in self._files.values():
            file.check_same()

    @property
    def verified_bytes(self) -> int:
        """How many bytes have agreed with a checksum so far."""
        return sum(extent.nbytes for extent in self._verified)

    def unchecked_bytes(self, name: str, record: TensorRecord) -> int:
        """How many bytes of the tensor have no checksum: a flipped bit there cannot be seen."""
        return sum(part.nbytes for part in self._parts(name, record) if part.storage is not None and part.storage not in self._verified)

    def _parts(self, name: str, record: TensorRecord) -> list[TensorRecord]:
        """The record itself, or one record per chunk. A chunk whose shape or dtype is wrong is found before memory is taken."""
        parts = [self._part(chunk) for chunk in record.chunks]
        for chunk, part in zip(record.chunks, parts):
            if (part.shape, part.dtype) != (chunk.sizes, record.dtype):
                raise Damaged(f"a part of {name} is {part.dtype}{list(part.shape)} where {record.dtype}{list(chunk.sizes)} was declared")
        return parts or [record]

    def _part(self, chunk: TensorPiece) -> TensorRecord:
        if chunk.part is not None:
            return chunk.part
        assert chunk.extent is not None
        found = read_embedded(chunk.extent, self._file(chunk.extent))
        if not isinstance(found, TensorRecord):
            raise Damaged(f"there is no tensor at byte {chunk.extent.offset:,} of {chunk.extent.path.name}")
        return found

    def _strided(self, record: TensorRecord) -> torch.Tensor:
        """Read the part of its storage that it reaches over, and no more: other tensors may lie there, too."""
        reach = 1 + sum((size - 1) * stride for size, stride in zip(record.shape, record.strides))
        row = torch.empty(reach, dtype=torch_dtype(record.dtype))
        self._fill_plain(row, replace(record, shape=(reach,), strides=(1,)))
        return row.as_strided(record.shape, record.strides)

    def _file(self, extent: Extent) -> FileBytes:
        if extent.path not in self._files:
            if len(self._files) >= _MOST_OPEN:
                del self._files[next(iter(self._files))]
            try:
                self._files[extent.path] = FileBytes(extent.path)
            except FileNotFoundError as error:  # it was there just now
                raise Replaced(extent.path) from error
        file = self._files[extent.path]
        if extent.stamp not in (None, file.stamp):
            raise Replaced(extent.path)
        return file

    def _check(self, record: TensorRecord) -> None:
        """Compare with the CRC that the writer left, piece by piece, which takes time but no memory."""
        extent = record.storage
        if extent is None or extent.offset + extent.nbytes > len(self._file(extent)):
            raise Damaged("the file has become shorter since it was opened")
        if not self.verify or extent.crc is None or extent in self._verified:
            return
        crc, end, file = 0, extent.offset + extent.nbytes, self._file(extent)
        step = memoryview(bytearray(min(_CRC_STEP, extent.nbytes)))
        for start in range(extent.offset, end, _CRC_STEP):
            piece = step[: end - start]
            file.read_into(piece, start)
            crc = zlib.crc32(piece, crc)
        if crc != extent.crc:
            raise Damaged(f"{extent.nbytes:,} bytes at {extent.offset:,} of {extent.path.name} are not what was written (CRC-32)")
        self._verified.add(extent)


def begin_again_if_replaced(work: Callable[P, R]) -> Callable[P, R]:
    """Do the work again if a file was replaced meanwhile: a writer may rename a new one to its place after its header was read."""

    @functools.wraps(work)
    def tried(*args: P.args, **options: P.kwargs) -> R:
        for _ in range(_TRIES):
            with suppress(Replaced):
                return work(*args, **options)
        return work(*args, **options)

    return tried


@contextmanager
def _told_of(name: str) -> Iterator[None]:
    """Turn damage, or an error of the disk, into a finding about this tensor."""
    try:
        yield
    except Damaged as error:
        raise CheckpointError("RW732", f"{name} cannot be read, its bytes are damaged", why=str(error)) from error
    except OSError as error:  # a failing disk
        raise unreadable(error.filename or name, error) from error


def _is_plain_memory(target: torch.Tensor) -> bool:
    """Whether its memory has the numbers one behind the other, as a file has them, and may be written to directly."""
    is_torchs = type(target) in (torch.Tensor, torch.nn.Parameter) and target.layout == torch.strided and not target.is_inference()
    return is_torchs and target.device.type == "cpu" and target.is_contiguous() and not (target.is_conj() or target.is_neg())


def torch_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise CheckpointError("RW740", f"this torch has no dtype {name}")
    return dtype


def check_range(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    """Raise if a number of `tensor` would become infinite in `dtype`, or change by more than rounding."""
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
    if torch.bool in (dtype, wanted):
        return dtype == torch.bool
    return torch.iinfo(wanted).max >= torch.iinfo(dtype).max and torch.iinfo(wanted).min <= torch.iinfo(dtype).min


def _lost(part: torch.Tensor, narrow: torch.Tensor) -> torch.Tensor:
    if not (part.dtype.is_floating_point or part.dtype.is_complex):
        return (narrow.to(part.dtype) != part) | (_negative(narrow) != _negative(part))  # 200 in int8 is -56, which is 200 again in uint8
    if narrow.itemsize > 1 and part.itemsize > 1:
        return narrow.isfinite() != part.isfinite()
    kind = torch.finfo(narrow.dtype)
    before, after = part.to(torch.float64), narrow.to(torch.float64)  # torch computes neither isfinite nor differences of float8
    is_off = (after - before).abs() > kind.eps * before.abs()  # 1e6 becomes 448, or -1 becomes 1
    is_other = is_off & (before.abs() > kind.smallest_normal)
    return (after.isfinite() != before.isfinite()) | is_other


def _negative(whole: torch.Tensor) -> torch.Tensor:
    return whole < 0 if whole.dtype.is_signed else torch.zeros(whole.shape, dtype=torch.bool, device=whole.device)
