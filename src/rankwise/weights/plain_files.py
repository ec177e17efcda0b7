"""Opens plain files only, never a pipe or a device, and never reads beyond their end."""

from __future__ import annotations

import io
import logging
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rankwise.errors import UnreadableInput
from rankwise.weights.tensor_records import CheckpointError, Damaged, Replaced

log = logging.getLogger("rankwise.weights")

_NEXT = ("check the path, and that it may be read",)


def check_path(path: str | os.PathLike[str]) -> Path:
    """The path, if it is a plain file or a folder."""
    if not str(path):  # Path("") is the folder that this process runs in
        raise UnreadableInput("the path is empty", why="a variable that nobody has set is", next=_NEXT)
    place = Path(path)
    try:
        mode = place.stat().st_mode
    except (OSError, ValueError) as error:  # not there, a loop of links, a NUL in its name
        reason = getattr(error, "strerror", None) or str(error)
        if isinstance(error, FileNotFoundError) and place.is_symlink():
            reason = f"it is a link to {os.readlink(place)}, which is not there"
        raise UnreadableInput(f"{place} cannot be read", why=reason, next=_NEXT) from error
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UnreadableInput(f"{place} is neither a file nor a folder", why="it is a device, a pipe or a socket", next=_NEXT)
    return place


class FileBytes:
    """The bytes of a file, read when they are asked for, by `len` and slices. They are not mapped, because a mapped file that another
    process cuts short would end this one (SIGBUS)."""

    def __init__(self, path: Path) -> None:
        self._path, self._handle = path, os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # else opening a pipe would wait for a writer
        facts = os.fstat(self._handle)
        self._size, self.stamp = facts.st_size, stamp_of(facts)
        self._block, self._block_at = b"", 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, span: slice) -> bytes:
        start, stop, _ = span.indices(self._size)
        if stop - start > _BLOCK:
            whole = bytearray(stop - start)
            self.read_into(whole, start)
            return bytes(whole)
        if not self._block_at <= start <= stop <= self._block_at + len(self._block):
            self._block, self._block_at = os.pread(self._handle, _BLOCK, start), start
            self.check_same()
        found = self._block[start - self._block_at : stop - self._block_at]
        if len(found) < stop - start:
            raise cut_short(self._path)
        return found

    def read_into(self, buffer: Any, start: int) -> None:
        """Fill the buffer with the bytes from `start` on. They are from the file that was opened; otherwise it raises."""
        view = memoryview(buffer)
        while len(view):
            count = os.preadv(self._handle, [view[:_MOST]], start)
            if not count:
                raise cut_short(self._path)
            view, start = view[count:], start + count
        self.check_same()

    def check_same(self) -> None:
        if stamp_of(os.fstat(self._handle)) != self.stamp:
            raise Replaced(self._path)

    def __del__(self) -> None:
        with suppress(AttributeError):  # it was never opened
            os.close(self._handle)


_BLOCK = 8192  # read at once, even if fewer bytes are wanted
_MOST = 1 << 30  # read at once at most, because some systems read no more


def cut_short(path: Path) -> Damaged:
    return Damaged(f"{path.name} has become shorter since it was opened")


def stamp_of(facts: os.stat_result) -> tuple[int, ...]:
    """Changes when another file takes the name, and when the file is written to."""
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def open_bytes(path: Path) -> Any:
    """The bytes of a plain file."""
    check_path(path)
    try:
        return FileBytes(path)
    except OSError as error:
        raise unreadable(path, error) from error


def read_small(path: Path, limit: int) -> bytes:
    """The whole content of a file that should be small."""
    size = check_path(path).stat().st_size
    if size > limit:
        raise Damaged(f"{path.name} has {size:,} bytes, where at most {limit:,} are sensible")
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path | str, error: OSError) -> UnreadableInput:
    return UnreadableInput(f"{path} cannot be read", why=error.strerror or str(error), next=_NEXT)


def beside(folder: Path, name: Any, named_by: str, is_folder: bool = False) -> Path:
    """The path of `name` in `folder`. A name that leads elsewhere is refused: the writer of an index must not choose what is opened."""
    if not isinstance(name, str) or not name or name in (".", "..") or "\0" in name or "/" in name or "\\" in name:
        summary = f"{named_by} names {str(name)[:200]!r}, which is not beside it"
        raise CheckpointError("RW736", summary, why="the parts of a checkpoint lie in its own folder")
    path = folder / name
    if not (path.is_dir() if is_folder else path.is_file()):
        summary = f"{named_by} names {name}, which is not there"
        raise CheckpointError("RW736", summary, why=f"looked in {folder}", next=("copy all files of the checkpoint",))
    return path


_COPIED_PER_S = 5 << 20  # a copy counts as at least so fast, in bytes
_SAVED_APART_S = 60.0


def warn_if_cut_off(last: Path, paths: Iterable[Path]) -> None:
    """Tell of files of two saves. `last` is written last, so a save that ended half-way leaves that of the save before it."""
    facts = {path: path.stat() for path in paths}
    saved = last.stat().st_mtime
    later = saved + _SAVED_APART_S + sum(fact.st_size for fact in facts.values()) / _COPIED_PER_S  # a slow copy that kept no times
    newer = [path for path, fact in facts.items() if fact.st_mtime > later]
    if newer and any(fact.st_mtime <= saved for fact in facts.values()):
        text = "%s: %d of %d files are much newer than %s, which is written last, and others are older; was a save over an older one"
        log.warning(text + " cut off? Then the weights are of both", last.parent, len(newer), len(facts), last.name)


class FilePart(io.RawIOBase):
    """A part of a file that reads like a file of its own, for zipfile: DCP keeps whole archives inside its files."""

    def __init__(self, data: Any, start: int, length: int) -> None:
        if start < 0 or length < 0 or start + length > len(data):
            raise Damaged(f"bytes {start:,} to {start + length:,} are declared, the file has {len(data):,}")
        self._data, self._start, self._length, self._at = data, start, length, 0
        self.stamp = getattr(data, "stamp", None)

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self._length - self._at))
        begin = self._start + self._at
        buffer[:count] = self._data[begin : begin + count]
        self._at += count
        return count

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = (0, self._at, self._length)[whence] + offset
        if self._at < 0:
            raise OSError("before the start")
        return self._at

    def seekable(self) -> bool:
        return True
