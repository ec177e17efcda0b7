"""What a checkpoint holds, as plain records: where each tensor's bytes lie, never the bytes themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankwise.causes import load_cause
from rankwise.errors import RankwiseError

# bytes per element, by torch's name of the dtype
ITEM_SIZES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1,
    "complex128": 16, "complex64": 8, "complex32": 4,
}  # fmt: skip

EXTRA_STATE = "_extra_state"  # how torch calls what a module keeps beside its tensors (get_extra_state)
Box = tuple[tuple[int, ...], tuple[int, ...]]  # offsets and sizes
_MAX_BOXES = 100_000


class Damaged(ValueError):
    """The bytes contradict themselves or each other; the text says how."""


def is_extra_state(name: Any) -> bool:
    return str(name).rpartition(".")[2] == EXTRA_STATE


@contextmanager
def as_damage(what: str) -> Iterator[None]:
    """Raise Damaged, with `what` and the error, for whatever a wrong description raises while it is read."""
    try:
        yield
    except Damaged:
        raise
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise Damaged(f"{what} ({type(error).__name__}: {error})") from error


class CheckpointError(RankwiseError):
    """A checkpoint cannot, or must not, be used; the finding says why."""

    def __init__(self, code: str, summary: str, *, why: str = "", next: tuple[str, ...] = ()) -> None:
        super().__init__(load_cause(code).finding(summary, certain=True, why=why, next=next))


class Replaced(CheckpointError):
    """Another file has taken the name of one whose header was read, so the header does not describe its bytes."""

    def __init__(self, path: Path) -> None:
        super().__init__("RW732", f"{path} was replaced again and again while it was read", next=("load it when nobody writes it",))


@dataclass(frozen=True)
class Extent:
    """Consecutive bytes of a file, with their CRC-32 if the format keeps one."""

    path: Path
    offset: int
    nbytes: int
    crc: int | None = None
    stamp: tuple[int, ...] | None = field(default=None, compare=False)  # of the file whose header was read: another may take its name


@dataclass(frozen=True)
class TensorPiece:
    """One box of a tensor that was saved in several: either a file of torch.save inside another file (`extent`), or a record (`part`).

    With a single offset it is a part of the tensor's elements in their order, whatever the tensor's shape is.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    extent: Extent | None = None
    part: TensorRecord | None = None


@dataclass(frozen=True)
class TensorRecord:
    """One tensor: what it is, and the storage or the chunks its elements lie in."""

    dtype: str
    shape: tuple[int, ...]
    storage: Extent | None = None
    first: int = 0  # index of its first element in the storage
    strides: tuple[int, ...] = ()  # in elements, like torch's
    chunks: tuple[TensorPiece, ...] = ()
    part: TensorPiece | None = None  # the part that one rank saved; no single file has the whole
    unreadable: str = ""  # why its elements cannot be read, for kinds that have no plain storage

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * ITEM_SIZES.get(self.dtype, 0)

    @property
    def place(self) -> tuple[Any, ...] | None:
        """An identity that two names of one tensor share; None without a storage of its own."""
        return (self.storage, self.first, self.strides, self.shape, self.dtype) if self.storage and self.numel else None

    def shares_all_with(self, other: TensorRecord) -> bool:
        """Whether both are the very same elements: two names of one tensor."""
        return self.place is not None and self.place == other.place


class StateDictNode(dict[Any, Any]):
    """A dictionary of a checkpoint, and what torch noted about each module when it saved it: `{"encoder": {"version": 2}}`.

    A module that changed its format reads the version, to know which one it is given; without it, it takes new weights for old ones.
    """

    notes: dict[str, dict[str, Any]]

    def __init__(self, values: Mapping[Any, Any] = {}, notes: Mapping[str, dict[str, Any]] = {}) -> None:
        super().__init__(values)
        self.notes = dict(notes)


@dataclass(frozen=True)
class Unbuilt:
    """Stands for an object that only running code could make."""

    what: str
    state: Any = None  # what the object would have been given, if that is plain data

    def __repr__(self) -> str:
        return f"an object that was not built: {self.what}"


@dataclass(frozen=True)
class Content:
    """What one file or folder holds: nested dictionaries with TensorRecords and plain values at their ends."""

    format: str  # "torch zip", "safetensors", …
    tree: dict[Any, Any]
    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()
    would_run: tuple[str, ...] = ()  # what an unpickler would have executed


def joined_content(format: str, tree: dict[Any, Any], contents: Sequence[Content], notes: tuple[str, ...] = ()) -> Content:
    """A content with this tree, and with the files and the calls of all these contents."""
    files = tuple(file for content in contents for file in content.files)
    would_run = tuple(dict.fromkeys(line for content in contents for line in content.would_run))
    return Content(format, tree, files, notes, would_run)


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a row-major tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def check_cover(name: str, shape: tuple[int, ...], boxes: list[Box]) -> None:
    """Raise Damaged unless the boxes fill the tensor exactly: an element in no box would be random."""
    inside = all(
        len(offsets) == len(sizes) == len(shape) and all(o + s <= n for o, s, n in zip(offsets, sizes, shape)) for offsets, sizes in boxes
    )
    boxes = [box for box in boxes if math.prod(box[1])]
    filled = sum(math.prod(sizes) for _, sizes in boxes)
    if not inside or filled != math.prod(shape) or len(boxes) > _MAX_BOXES or _overlap(sorted(boxes)):
        raise Damaged(f"the parts of {name[:100]} do not fill its shape {list(shape)}: {filled:,} of {math.prod(shape):,} elements")


def _overlap(boxes: list[Box]) -> bool:
    """Whether two boxes overlap. They are sorted: each is compared with those that start before it ends in the first dimension."""
    for i, (offsets, sizes) in enumerate(boxes):
        for others, other_sizes in boxes[i + 1 :]:
            if others and others[0] >= offsets[0] + sizes[0]:
                break
            if all(o < p + q and p < o + s for o, s, p, q in zip(offsets, sizes, others, other_sizes)):
                return True
    return False
