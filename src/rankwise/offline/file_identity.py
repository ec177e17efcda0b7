"""What tells one input file or folder from another: path, size and time of change."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any


def file_identity(path: Path) -> dict[str, Any]:
    """By path, size and time of change: reading terabytes once more to be sure would cost more than the job."""
    facts = path.stat()
    return {"path": str(path.resolve()), "bytes": facts.st_size, "changed_ns": facts.st_mtime_ns}


def folder_identity(folder: Path, names: list[str]) -> dict[str, Any]:
    """The same over these files in it."""
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\0{_facts(folder / name)}\0".encode(errors="surrogateescape"))
    return {"path": str(folder.resolve()), "files": len(names), "digest": digest.hexdigest()}


def _facts(path: Path) -> str:
    try:
        facts = path.stat()
    except OSError:  # a link to nowhere, whose reader will say so
        return "gone"
    return f"{facts.st_size} {facts.st_mtime_ns}"
