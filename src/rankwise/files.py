"""Files that appear whole: written beside their place, then renamed; and whether a file is still the one it was."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def whole_file(
    path: Path, *, is_private: bool = False, is_synced: bool = False, check: Callable[[Path], None] = lambda complete: None
) -> Iterator[BinaryIO]:
    """A file that takes its name when all of it is written; if anything fails before, the old file stays and nothing else is left.

    `is_private`: only the owner may read it. `is_synced`: it is on the disk before it takes its name. `check` is given the complete file
    while the old one is still there; where it raises, the old one stays.
    """
    check_not_special(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            if is_synced:
                file.flush()
                os.fsync(file.fileno())
        check(Path(temporary))
        if not is_private:
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
        if is_synced:
            sync_folder(path.parent)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def check_not_special(path: Path) -> None:
    if is_special(path):
        raise OSError(errno.EINVAL, "it is a pipe or a device, which no file must take the place of", str(path))


def is_special(path: Path) -> bool:
    """Whether no file may be renamed to this path: a pipe, a device, a link like `/dev/stdout`. Root could replace `/dev/null`."""
    is_device = path.exists() and not (path.is_file() or path.is_dir())
    folder = path.parent.resolve()
    return is_device or (os.path.lexists(path) and (folder == Path("/dev") or Path("/proc") in folder.parents))


def write_whole(path: Path, content: str | bytes, *, is_private: bool = False) -> None:
    with whole_file(path, is_private=is_private) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def sync_folder(folder: Path) -> None:
    """Make a rename in this folder survive a power cut, where the file system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def what_stops(error: OSError) -> tuple[str, str]:
    """Why a file cannot be written, and what helps."""
    what = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full" if error.errno == errno.ENOSPC else what, "make room there"
    if error.errno == errno.EFBIG:
        return "a limit on the size of files is reached", "ulimit -f shows the limit and sets it"
    return what, "see what is at that path, and who may write there (ls -ld)"


def text_if_readable(path: Path) -> str:
    """A file's text; empty where it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def stamp_of(path: str | Path) -> tuple[int, int]:
    """Size and time of change, which differ once a file was replaced or written to in place."""
    facts = os.stat(path)
    return facts.st_size, facts.st_mtime_ns
