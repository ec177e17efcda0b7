"""Where answers are kept by the task's id, so that a message that comes twice is answered once: Redis, or a folder.

The first answer that is stored under an id stays: whoever comes later is given that one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from pathlib import Path
from typing import Any, Protocol

from rankwise.broker.connecting import is_redis


class Store(Protocol):
    def get(self, id: str) -> bytes | None: ...
    def put(self, id: str, data: bytes) -> bytes:
        """What is stored under this id from now on: `data`, or what was there before."""
        ...

    def count_try(self, id: str) -> int:
        """How often a message of this id has come back without an answer, this time included."""
        ...


def open_store(address: str, queue: str, keep_s: int) -> Store:
    """`redis://…`, or the path of a folder, which all workers of the queue have to share."""
    return RedisStore(address, queue, keep_s) if is_redis(address) else FolderStore(Path(address), queue, keep_s)


class RedisStore:
    def __init__(self, address: str, queue: str, keep_s: int, tries: int = 3) -> None:
        """A worker tries again by itself, and looks meanwhile whether it is to stop; so few `tries` are enough for it."""
        import redis
        from redis.backoff import ExponentialBackoff
        from redis.retry import Retry

        errors: list[Any] = [redis.ConnectionError, redis.TimeoutError]
        retry = Retry(ExponentialBackoff(cap=2 if tries > 3 else 0.2), tries)
        self.redis = redis.Redis.from_url(address, retry=retry, retry_on_error=errors)
        self._prefix, self._keep_s = f"rankwise:{queue}", keep_s

    def get(self, id: str) -> bytes | None:
        found: Any = self.redis.get(f"{self._prefix}:result:{id}")
        return found if found is None else bytes(found)

    def put(self, id: str, data: bytes) -> bytes:
        # A retry after a lost connection may find its own first attempt there, which is the same answer.
        is_first = self.redis.set(f"{self._prefix}:result:{id}", data, nx=True, ex=self._keep_s)
        return data if is_first else self.get(id) or data

    def count_try(self, id: str) -> int:
        key = f"{self._prefix}:tries:{id}"
        count: Any = self.redis.incr(key)
        self.redis.expire(key, self._keep_s)
        return int(count)


class FolderStore:
    """A file for each answer; a hard link makes one of several writers the first."""

    def __init__(self, folder: Path, queue: str, keep_s: int) -> None:
        self._folder = folder / hashlib.sha256(queue.encode()).hexdigest()[:16]
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.glob("*/*"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < time.time() - keep_s:
                    path.unlink()

    def get(self, id: str) -> bytes | None:
        try:
            return self._path(id).read_bytes()
        except FileNotFoundError:
            return None

    def put(self, id: str, data: bytes) -> bytes:
        path = self._path(id)
        path.parent.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
            file.write(data)
        try:
            os.link(file.name, path)
            return data
        except FileExistsError:
            return path.read_bytes()
        finally:
            os.unlink(file.name)

    def count_try(self, id: str) -> int:
        path = self._path(id).with_suffix(".tries")
        path.parent.mkdir(exist_ok=True)
        with open(path, "ab") as file:
            file.write(b".")
            return file.tell()

    def _path(self, id: str) -> Path:
        name = hashlib.sha256(id.encode()).hexdigest()
        return self._folder / name[:2] / name
