"""What tells one input file or folder from another: path, size and time of change."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from rankwise.offline.addresses import Address, Place


def file_identity(path: Place) -> dict[str, Any]:
    """By path, size and time of change: reading terabytes once more to be sure would cost more than the job."""
    if isinstance(path, Address):
        info = path.info()
        return {"path": str(path), "bytes": info.size, "changed_ns": info.mtime_ns}
    facts = path.stat()
    return {"path": str(path.resolve()), "bytes": facts.st_size, "changed_ns": facts.st_mtime_ns}


def folder_identity(folder: Place, names: list[str]) -> dict[str, Any]:
    """The same over these files in it."""
    digest = hashlib.sha256()
    known = dict(folder.files()) if isinstance(folder, Address) else {}
    for name in names:
        facts = known.get(name, "gone") if isinstance(folder, Address) else _facts(folder / name)
        digest.update(f"{name}\0{facts}\0".encode(errors="surrogateescape"))
    path = str(folder) if isinstance(folder, Address) else str(folder.resolve())
    return {"path": path, "files": len(names), "digest": digest.hexdigest()}


def _facts(path: Path) -> str:
    try:
        facts = path.stat()
    except OSError:  # a link to nowhere, whose reader will say so
        return "gone"
    return f"{facts.st_size} {facts.st_mtime_ns}"
