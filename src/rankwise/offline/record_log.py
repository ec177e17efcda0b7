"""An append-only file of checksummed records. After any crash it holds what was written, up to some record."""

from __future__ import annotations

import fcntl
import json
import os
import time
import zlib
from pathlib import Path
from typing import Any

_HEAD = 9  # bytes in front of the text: its CRC-32, and a space
_PATIENCE_S = 3.0  # workers of a killed process may hold the lock a moment longer than that process


class InUse(Exception):
    """Another process has the journal open."""


class JournalRemoved(Exception):
    """The process that had the journal open has finished its job, and removed it."""


class RecordLog:
    """A journal of dictionaries. A record is there whole or not at all; a torn one at the end is cut off when the journal is opened."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._lock()
            self.records, self._end = _read(path)
            if self._end != os.fstat(self._file).st_size:
                os.ftruncate(self._file, self._end)
                os.fsync(self._file)
        except BaseException:
            os.close(self._file)
            raise

    def append(self, record: dict[str, Any]) -> None:
        """Write the record through to the disk. If that fails, the journal stays as it was."""
        data = _line(record)
        try:
            if os.pwrite(self._file, data, self._end) != len(data):
                raise OSError(28, "No space left on device")
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self._end)
            raise
        self._end += len(data)
        self.records.append(record)

    def keep(self, count: int) -> None:
        """Forget all but the first `count` records."""
        self._end = sum(len(_line(record)) for record in self.records[:count])
        os.ftruncate(self._file, self._end)
        os.fsync(self._file)
        del self.records[count:]

    def close(self) -> None:
        os.close(self._file)

    def _lock(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise InUse from None
                time.sleep(0.05)
        if not os.fstat(self._file).st_nlink:
            raise JournalRemoved


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records, read without a lock; none if there is no journal."""
    try:
        return _read(path)[0]
    except OSError:
        return []


def _line(record: dict[str, Any]) -> bytes:
    return _checked(json.dumps(record).encode())


def _checked(text: bytes) -> bytes:
    """A line of JSON behind its CRC-32."""
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _read(path: Path) -> tuple[list[dict[str, Any]], int]:
    """All records before the first one that is not whole, and where they end."""
    records: list[dict[str, Any]] = []
    end = 0
    for line in path.read_bytes().splitlines(keepends=True):
        text = line[_HEAD:-1]
        if line != _checked(text):
            break
        records.append(json.loads(text))
        end += len(line)
    return records, end
