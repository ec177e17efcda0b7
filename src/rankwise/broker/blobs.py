"""Tensors too large for a message: their bytes are under a key of Redis or in a file, and the message holds a reference.

A reference comes from another process, so only two kinds are followed: a key with our prefix, and a file inside the folder of `--files`.
"""

from __future__ import annotations

import contextlib
import uuid
from pathlib import Path
from typing import Any

from rankwise.broker.messages import Malformed, TensorMissing

_PREFIX = "rankwise:blob:"
_KEEP_S = 24 * 3600


class Blobs:
    """`redis` is a client of redis-py, `folder` a path that sender and receiver share; either may be missing."""

    def __init__(self, redis: Any = None, folder: str | Path | None = None, large_bytes: int = 1 << 20) -> None:
        self._redis, self._large_bytes = redis, large_bytes
        self._folder = Path(folder).resolve() if folder else None

    def keep(self, raw: memoryview) -> str | None:
        """A reference to these bytes; None where they are few, or there is no place for them."""
        if len(raw) < self._large_bytes or (self._redis is None and self._folder is None):
            return None
        name = uuid.uuid4().hex
        if self._folder is not None:
            (self._folder / f".{name}").write_bytes(raw)
            (self._folder / f".{name}").rename(self._folder / name)
            return f"file:{name}"
        self._redis.set(f"{_PREFIX}{name}", bytes(raw), ex=_KEEP_S)
        return f"redis:{_PREFIX}{name}"

    def fetch(self, ref: str) -> bytes:
        key, path = self._place_of(ref)
        if not key and path is None:
            raise Malformed(f"the reference {ref[:80]!r} is not one that can be followed here", next=("rankwise worker --files FOLDER",))
        try:
            found: Any = self._redis.get(key) if path is None else path.read_bytes()
        except OSError:
            found = None
        if found is None:
            raise TensorMissing(f"nothing lies at the reference {ref[:80]!r} (any more)")
        return bytes(found)

    def drop(self, refs: tuple[str, ...]) -> None:
        for ref in refs:
            key, path = self._place_of(ref)
            if key:
                self._redis.delete(key)
            elif path is not None:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _place_of(self, ref: str) -> tuple[str, Path | None]:
        """The key of a reference, or its file, which has to be in the folder itself: paths and links that lead out of it are refused."""
        kind, _, name = ref.partition(":")
        if kind == "redis" and self._redis is not None and name.startswith(_PREFIX):
            return name, None
        path = (self._folder / name).resolve() if kind == "file" and self._folder is not None and "\0" not in name else None
        return "", path if path is not None and path.parent == self._folder else None
