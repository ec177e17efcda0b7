"""Tensors too large for a message: their bytes lie under a key of Redis or in a file, and the message holds a reference.

A reference comes from outside, so it can only name what was put there for this: a key with our prefix, a file inside the one folder.
"""

from __future__ import annotations

import contextlib
import uuid
from pathlib import Path
from typing import Any

from rankwise.broker.messages import Gone, Malformed

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
        kind, _, name = ref.partition(":")
        if kind == "redis" and self._redis is not None and name.startswith(_PREFIX):
            found: Any = self._redis.get(name)
        elif kind == "file" and self._folder is not None:
            found = _read(self._folder, name)
        else:
            raise Malformed(f"the reference {ref[:80]!r} is not one that can be followed here", next=("rankwise worker --files FOLDER",))
        if found is None:
            raise Gone(f"nothing lies at the reference {ref[:80]!r} (any more)")
        return bytes(found)

    def drop(self, refs: tuple[str, ...]) -> None:
        for ref in refs:
            kind, _, name = ref.partition(":")
            if kind == "redis" and self._redis is not None and name.startswith(_PREFIX):
                self._redis.delete(name)
            elif kind == "file" and self._folder is not None and (path := _inside(self._folder, name)) is not None:
                with contextlib.suppress(OSError):
                    path.unlink()


def _read(folder: Path, name: str) -> bytes | None:
    path = _inside(folder, name)
    try:
        return path.read_bytes() if path is not None else None
    except OSError:
        return None


def _inside(folder: Path, name: str) -> Path | None:
    """The file of this name, if it lies in the folder itself: no way leads out, also not over a link."""
    path = (folder / name).resolve() if "\0" not in name else folder
    return path if path.parent == folder else None
