"""Keeps answers by the task's id, in Redis or a folder, so that a message that comes twice is run once and answered with the same answer.

The first answer that is stored under an id stays, and later workers are given it. Until there is one, the id is claimed by the worker that
has the task. A claim holds until `CLAIM_S` after its worker's last sign of life.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
import uuid
from itertools import count
from pathlib import Path
from typing import Any

from rankwise.broker.connecting import check_address, is_redis
from rankwise.errors import UsageError

CLAIM_S = 10  # a worker gives a sign of life every second


# KEYS: the answer, the claim. ARGV: start of the workers' keys, this worker's name, how long that lives, how long a claim is kept.
_CLAIM = """
local stored = redis.call('GET', KEYS[1])
if stored then return stored end
redis.call('SET', ARGV[1] .. ARGV[2], '', 'EX', ARGV[3])
local holder = redis.call('GET', KEYS[2])
if holder and holder ~= ARGV[2] and redis.call('EXISTS', ARGV[1] .. holder) == 1 then return 0 end
redis.call('SET', KEYS[2], ARGV[2], 'EX', ARGV[4])
return 1
"""
_UNCLAIM = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"


class RedisStore:
    """One worker's view of the store."""

    def __init__(self, address: str, queue: str, keep_s: int, tries: int = 3) -> None:
        """A worker tries again by itself, and looks meanwhile whether it is to stop; so few `tries` are enough for it."""
        import redis
        from redis.backoff import ExponentialBackoff
        from redis.retry import Retry

        errors: list[Any] = [redis.ConnectionError, redis.TimeoutError]
        retry = Retry(ExponentialBackoff(cap=2 if tries > 3 else 0.2), tries)
        self.redis = redis.Redis.from_url(address, retry=retry, retry_on_error=errors, socket_timeout=10, socket_connect_timeout=5)
        self._prefix, self._keep_s, self._name = f"rankwise:{queue}", keep_s, uuid.uuid4().hex
        self._claim, self._unclaim = self.redis.register_script(_CLAIM), self.redis.register_script(_UNCLAIM)

    def get(self, id: str) -> bytes | None:
        found: Any = self.redis.get(f"{self._prefix}:result:{id}")
        return found if found is None else bytes(found)

    def put(self, id: str, data: bytes) -> bytes:
        """Store `data` under this id unless there is an answer already; returns the stored one. Claims to the id end."""
        # A retry after a lost connection may find its own first attempt there, which is the same answer.
        pipe = self.redis.pipeline(transaction=False)
        pipe.set(f"{self._prefix}:result:{id}", data, nx=True, ex=self._keep_s)
        pipe.delete(f"{self._prefix}:claim:{id}")
        is_first, _ = pipe.execute()
        return data if is_first else self.get(id) or data

    def claim(self, id: str) -> bytes | bool:
        """The answer; where there is none yet, whether this worker is to run the task: not if another living worker has claimed it."""
        keys = [f"{self._prefix}:result:{id}", f"{self._prefix}:claim:{id}"]
        found: Any = self._claim(keys=keys, args=[f"{self._prefix}:worker:", self._name, CLAIM_S, self._keep_s])
        return bool(found) if isinstance(found, int) else bytes(found)

    def unclaim(self, id: str) -> None:
        """Give the claim up, so that another worker may take the task."""
        self._unclaim(keys=[f"{self._prefix}:claim:{id}"], args=[self._name])

    def sign(self) -> None:
        """Note that this worker is alive."""
        self.redis.set(f"{self._prefix}:worker:{self._name}", "", ex=CLAIM_S)

    def leave(self) -> None:
        """This worker ends: free the tasks it has claimed."""
        self.redis.delete(f"{self._prefix}:worker:{self._name}")

    def count_try(self, id: str) -> int:
        """How often a message of this id has come back without an answer, this time included."""
        key = f"{self._prefix}:tries:{id}"
        count: Any = self.redis.incr(key)
        self.redis.expire(key, self._keep_s)
        return int(count)


class FolderStore:
    """The same as files, one for each answer; a hard link makes one of several writers the first. A claim is a hard link as well, to the
    file that its worker touches: so its time is that of the worker's last sign, by the clock of the file system."""

    def __init__(self, folder: Path, queue: str, keep_s: int) -> None:
        self._folder = folder / hashlib.sha256(queue.encode()).hexdigest()[:16]
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # answers are the user's own, also in a folder that all can read
        for path in self._folder.glob("*/*"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < time.time() - keep_s:
                    path.unlink()
        self._sign = self._folder / "workers" / uuid.uuid4().hex
        self._sign.parent.mkdir(exist_ok=True)
        self.sign()

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
            with contextlib.suppress(FileNotFoundError):
                for holder in count():
                    _claim_of(path, holder).unlink()

    def claim(self, id: str) -> bytes | bool:
        self.sign()
        path = self._path(id)
        path.parent.mkdir(exist_ok=True)
        is_ours = self._take(path)
        stored = self.get(id)  # after taking the claim: a worker stores its answer before it gives up its claim
        if stored is None:
            return is_ours
        self.unclaim(id)
        return stored

    def unclaim(self, id: str) -> None:
        own = self._sign.stat().st_ino
        with contextlib.suppress(FileNotFoundError):
            for holder in count():
                claim = _claim_of(self._path(id), holder)
                if claim.stat().st_ino == own:
                    claim.unlink()

    def sign(self) -> None:
        self._sign.touch()

    def leave(self) -> None:
        os.utime(self._sign, (0, 0))
        self._sign.unlink()

    def _take(self, path: Path) -> bool:
        """A claim that died with its worker stays, and the next one counts: of several workers that see this, one makes it."""
        own, holder = self._sign.stat(), 0
        while True:
            claim = _claim_of(path, holder)
            with contextlib.suppress(FileExistsError):
                os.link(self._sign, claim)
                return True
            with contextlib.suppress(FileNotFoundError):  # just given up: try this one again
                seen = claim.stat()
                if seen.st_ino == own.st_ino or own.st_mtime - seen.st_mtime < CLAIM_S:
                    return seen.st_ino == own.st_ino
                holder += 1

    def count_try(self, id: str) -> int:
        path = self._path(id).with_suffix(".tries")
        path.parent.mkdir(exist_ok=True)
        with open(path, "ab") as file:
            file.write(b".")
            return file.tell()

    def _path(self, id: str) -> Path:
        name = hashlib.sha256(id.encode()).hexdigest()
        return self._folder / name[:2] / name


Store = RedisStore | FolderStore


def open_store(address: str, queue: str, keep_s: int) -> Store:
    """`redis://…`, or the path of a folder, which all workers of the queue have to share."""
    if is_redis(address):
        check_address(address)
        return RedisStore(address, queue, keep_s)
    if "://" in address:
        steps = ("give redis://HOST:6379/0, or a folder that all workers share",)
        raise UsageError(f"answers cannot be kept at {address.partition('://')[0]}://…", next=steps)
    try:
        return FolderStore(Path(address), queue, keep_s)
    except OSError as error:
        steps = ("give a folder that all workers share and may write to",)
        raise UsageError(f"answers cannot be kept in {address}: {error.strerror or error}", next=steps) from None


def _claim_of(path: Path, holder: int) -> Path:
    return path.with_suffix(f".claim{holder}")
