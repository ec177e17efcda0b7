"""The archive torch.save writes: a zip whose entries are stored uncompressed, so that they can be read where they lie."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankwise.weights.plain_files import FilePart
from rankwise.weights.tensor_records import CheckpointError, Damaged, Extent

MAX_SMALL_ENTRY = 256 << 20  # of the entries that are read whole: pickles and JSON
_LOCAL_HEADER = 30
_MAX_ENTRIES = 2_000_000


class Repacked(Damaged):
    """Whole, but compressed: the archive was unpacked and packed again."""


@dataclass(frozen=True)
class Archive:
    """The entries of one archive by their name without the common top folder, each with the place of its bytes."""

    data: Any  # the file's bytes
    entries: dict[str, Extent]

    def read(self, name: str) -> bytes:
        """A small entry, checked against its CRC."""
        extent = self.entries.get(name)
        if extent is None:
            raise Damaged(f"{name} is missing in it")
        if extent.nbytes > MAX_SMALL_ENTRY:
            raise Damaged(f"{name} has {extent.nbytes:,} bytes, where at most {MAX_SMALL_ENTRY:,} are sensible")
        content = bytes(self.data[extent.offset : extent.offset + extent.nbytes])
        if extent.crc is not None and zlib.crc32(content) != extent.crc:
            raise Damaged(f"the bytes of {name} are not what was written: their CRC-32 differs")
        return content


def open_archive(path: Path, data: Any, start: int = 0, length: int | None = None) -> Archive:
    """The archive in these bytes of a file; raises Damaged if any entry is not wholly there."""
    length = len(data) - start if length is None else length
    window = FilePart(data, start, length)
    infos = _directory(window)
    _check_is_no_program(path, {info.filename.partition("/")[2] for info in infos})
    if len(infos) > _MAX_ENTRIES:
        raise Damaged(f"{len(infos):,} entries")
    if min((info.header_offset for info in infos), default=0):
        raise Damaged("its directory of entries is that of another archive inside it, the own one is missing")
    entries: dict[str, Extent] = {}
    for info in infos:
        name = info.filename.partition("/")[2] or info.filename
        if name in entries:
            raise Damaged(f"two entries are called {name}")
        entries[name] = _extent(path, window, start, length, info)
    return Archive(data, entries)


def names_in_archive(data: Any) -> list[str]:
    """The names of all entries as the directory has them, whichever program wrote the archive."""
    return [info.filename for info in _directory(FilePart(data, 0, len(data)))]


def _directory(window: FilePart) -> list[zipfile.ZipInfo]:
    try:
        with zipfile.ZipFile(window) as archive:
            return archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError, IndexError, OverflowError) as error:
        raise Damaged(f"its directory of entries cannot be read ({error})") from error


def _check_is_no_program(path: Path, names: set[str]) -> None:
    """Refuse a file of torch.jit.save, which is an archive of the same kind; its code is compressed on purpose."""
    if "constants.pkl" in names and any(name.startswith("code/") for name in names):
        steps = (f'torch.save(torch.jit.load("{path.name}").state_dict(), "weights.pt"), if you trust the file',)
        raise CheckpointError(
            "RW740", f"{path} is a TorchScript program, not a checkpoint", why="its weights lie in objects of its code", next=steps
        )


def _extent(path: Path, window: FilePart, start: int, length: int, info: zipfile.ZipInfo) -> Extent:
    window.seek(info.header_offset)
    fixed = window.read(_LOCAL_HEADER) or b""
    if len(fixed) < _LOCAL_HEADER or fixed[:4] != b"PK\x03\x04":
        raise Damaged(f"{info.filename} is not where the directory says")
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
        said = f"{info.filename} is compressed to {info.compress_size:,} of {info.file_size:,} bytes; torch.save never compresses"
        is_meant = info.compress_type == int.from_bytes(fixed[8:10], "little") != zipfile.ZIP_STORED  # both headers say so
        raise Repacked(said) if is_meant else Damaged(said)
    begin = info.header_offset + _LOCAL_HEADER + int.from_bytes(fixed[26:28], "little") + int.from_bytes(fixed[28:30], "little")
    if begin + info.file_size > length:
        raise Damaged(f"{info.filename} should have {info.file_size:,} bytes, {max(length - begin, 0):,} are there")
    # torch writes 0 after set_crc32_options(False); of real contents, one in four billion has the CRC 0
    return Extent(path, start + begin, info.file_size, info.CRC or None, window.stamp)
