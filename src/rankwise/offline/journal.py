"""An append-only file of checksummed records: after any crash, what it holds is what was written, up to one point."""

from __future__ import annotations

import fcntl
import json
import os
import time
import zlib
from pathlib import Path
from typing import Any

_HEAD = 8  # length and CRC-32 of the text that follows
_MAX_RECORD = 16 << 20
_PATIENCE_S = 3.0  # a killed parent's workers may hold the lock a moment longer than it does


class InUse(Exception):
    """Another process has the journal open."""


class Gone(Exception):
    """The process that had it open has finished its job and removed it meanwhile."""


class Journal:
    """Records are dictionaries. A record is there whole or not at all; a torn one at the end is cut off when the journal is opened."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._lock()
            self.records, end = _read(self._file)
            if end != os.fstat(self._file).st_size:
                os.ftruncate(self._file, end)
                os.fsync(self._file)
            self._end = end
        except BaseException:
            os.close(self._file)
            raise

    def append(self, record: dict[str, Any]) -> None:
        """Write the record through to the disk. If that fails, the journal is as it was before."""
        text = json.dumps(record, separators=(",", ":")).encode()
        data = len(text).to_bytes(4, "little") + zlib.crc32(text).to_bytes(4, "little") + text
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
        self._end = sum(_HEAD + len(json.dumps(record, separators=(",", ":")).encode()) for record in self.records[:count])
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
            raise Gone


def read_records(path: Path) -> list[dict[str, Any]]:
    """Read without a lock, for a caller that only looks; empty if there is no journal."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        return _read(file)[0]
    finally:
        os.close(file)


def _read(file: int) -> tuple[list[dict[str, Any]], int]:
    """All records up to the first that is not whole, and where they end."""
    records: list[dict[str, Any]] = []
    end = 0
    while True:
        head = os.pread(file, _HEAD, end)
        length = int.from_bytes(head[:4], "little")
        if len(head) < _HEAD or not 0 < length <= _MAX_RECORD:  # zeros, as a crash may leave them, are a head of nothing
            return records, end
        text = os.pread(file, length, end + _HEAD)
        if len(text) < length or zlib.crc32(text) != int.from_bytes(head[4:], "little"):
            return records, end
        records.append(json.loads(text))
        end += _HEAD + length
