"""The identity of a job. Another command, another input or other weights make another job, and results of two jobs are never mixed."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.offline.addresses import Address, Place
from rankwise.offline.executing import Recipe
from rankwise.offline.format import Source
from rankwise.offline.row_batches import Selection
from rankwise.offline.values import as_array, is_numbers

_FIRST_ROWS = 4
UNKNOWN = "a callable of that process only"  # a lambda, or a function of a notebook: nothing tells what it returns now


def identity_of(recipe: Recipe, source: Source, selection: Selection, batch: int | str) -> dict[str, Any]:
    return {
        "build": _of_build(recipe),
        "weights": of_path(Path(recipe.weights)) if recipe.weights else None,
        "input": source.identity,
        "columns": list(selection.columns),
        "keep": list(selection.keep),
        "load": recipe.load,
        "stack": recipe.stack,
        "batch": batch,
    }


def is_certain(identity: dict[str, Any], source: Source) -> bool:
    """Whether the same identity means the same results; it does not for objects of which only the type is known."""
    return source.is_recognisable and identity["build"] != UNKNOWN


def _of_build(recipe: Recipe) -> Any:
    """A callable is recognised with the values it carries: `partial(build, 2)` is not `partial(build, 3)`."""
    build = recipe.build
    if isinstance(build, str):
        return of_path(Path(build)) if recipe.program and Path(build).is_file() else build
    try:
        pickled = pickle.dumps(build)
    except Exception:  # its parts may raise anything
        return UNKNOWN
    if b"__main__" in pickled and not hasattr(sys.modules["__main__"], "__file__"):  # a notebook's cell may be edited and run again
        return UNKNOWN
    digest = hashlib.sha256(pickled).hexdigest()
    return f"{getattr(build, '__module__', '')}:{getattr(build, '__qualname__', type(build).__qualname__)} {digest[:16]}"


def of_path(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        return file_identity(path)
    return folder_identity(path, sorted(str(below.relative_to(path)) for below in path.rglob("*") if not below.is_dir()))


def first_rows_digest(source: Source) -> str:
    """A hash of the first rows; a dataset with the same type, length and first rows counts as the same."""
    first = next(iter(source.batches(_FIRST_ROWS)), None)
    said = json.dumps([first.columns, first.kept] if first is not None else [], default=_said, skipkeys=True)
    return hashlib.sha256(said.encode()).hexdigest()


def _said(value: Any) -> Any:
    """A JSON value for a value that JSON does not have: the same for equal values in every process; the type's name for an object."""
    if isinstance(value, (bytes, complex)):
        return repr(value)
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return value.tolist()
    try:
        array = as_array(value) if is_numbers(value) or isinstance(value, np.ndarray) else None
    except (TypeError, ValueError, RuntimeError):  # a tensor of a type that numpy does not have
        array = None
    return type(value).__qualname__ if array is None else [str(array.dtype), array.shape, hashlib.sha256(array.tobytes()).hexdigest()]


def file_identity(path: Place) -> dict[str, Any]:
    """Path, size, time of change and a checksum of a few blocks. To read terabytes once more would cost more than the job. Size and time
    alone are not enough: two checkpoints of a model have one size, and archives, images and copies give all their files one time."""
    if isinstance(path, Address):
        info = path.info()
        return {"path": str(path), "bytes": info.size, "changed_ns": info.mtime_ns}
    facts = path.stat()
    return {"path": str(path.resolve()), "bytes": facts.st_size, "changed_ns": facts.st_mtime_ns, "sample": _sample(path, facts)}


_BLOCK, _BLOCKS = 4096, 16  # so many blocks of each file are read, the first and the last among them
_MAX_SAMPLED = 64  # in a folder of more files than this, no blocks are read


def _sample(path: Path, facts: os.stat_result, nbytes: int | None = None) -> str:
    """A checksum of blocks from all over a file, or of its first `nbytes`; empty if the file cannot be opened, because its reader will say
    so."""
    if not stat.S_ISREG(facts.st_mode):
        return ""
    size = facts.st_size if nbytes is None else nbytes
    last = max(0, size - _BLOCK)
    digest = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as file:
            for place in sorted({last * number // (_BLOCKS - 1) for number in range(_BLOCKS)}):
                digest.update(os.pread(file.fileno(), min(_BLOCK, size - place), place))
    except OSError:
        return ""
    return digest.hexdigest()[:16]


_GROWING = (".csv", ".tsv", ".jsonl", ".ndjson")  # one more line at the end changes no row


def was_rewritten(known: dict[str, Any]) -> bool:
    """Whether a file of this machine has changed. One that was removed counts as unchanged: it is still being read."""
    if "changed_ns" not in known:
        return False
    path = Path(known["path"])
    try:
        return file_identity(path) != known and not (path.suffix.lower() in _GROWING and _begins_with(path, known))
    except OSError:
        return False


def _begins_with(path: Path, known: dict[str, Any]) -> bool:
    """Whether a file of lines begins with what was known of it, and has more after the end of the last known line."""
    size, facts = known["bytes"], path.stat()
    if facts.st_size <= size or _sample(path, facts, size) != known["sample"]:
        return False
    with path.open("rb") as file:
        file.seek(max(0, size - 1))
        return file.read(1) == b"\n"


def folder_identity(folder: Place, names: list[str]) -> dict[str, Any]:
    """The identity of a folder, made of the facts about these files in it."""
    if isinstance(folder, Address):
        path, known = str(folder), dict(folder.files())
    else:
        path, known = str(folder.resolve()), {name: _facts(folder / name, len(names) <= _MAX_SAMPLED) for name in names}
    said = "".join(f"{name}\0{known.get(name, 'gone')}\0" for name in names)
    return {"path": path, "files": len(names), "digest": hashlib.sha256(said.encode(errors="surrogateescape")).hexdigest()}


def _facts(path: Path, is_sampled: bool) -> str:
    try:
        facts = path.stat()
    except OSError:  # a link to nothing, whose reader will say so
        return "gone"
    return f"{facts.st_size} {facts.st_mtime_ns}" + (f" {_sample(path, facts)}" if is_sampled else "")
