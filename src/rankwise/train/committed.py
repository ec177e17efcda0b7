"""Folders of checkpoints that are there whole or not at all: written under another name, flushed to the disk, renamed last.

```
runs/a/step-00000120/manifest.json      size and SHA-256 of each file; written last, so a folder that has it is whole
                     state.pt
runs/a/step-00000140.damaged            found damaged by resume(), set aside by the next save
runs/a/last.pt                          → the newest state.pt
runs/a/.step-00000160.1f3c0a92.partial  what a crash leaves behind; never looked at, removed by the next writer
runs/a/.writer                          locked by the process that writes here, for as long as it lives
```
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from rankwise.causes import load_cause
from rankwise.files import sync_folder, what_stops
from rankwise.findings import Finding
from rankwise.train import group

MANIFEST, STATE, LAST, WRITER = "manifest.json", "state.pt", "last.pt", ".writer"
_NAME = re.compile(r"step-(\d{8,})$")
_BLOCK = 1 << 20
_locked: dict[Path, int] = {}  # folders that this process has locked, with the open file; closing that file would release the lock


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was committed. `find_damage` tells whether its bytes are still what was written."""

    step: int
    path: Path

    @property
    def state(self) -> Path:
        return self.path / STATE


def all_saved(folder: Path) -> list[Saved]:
    """The committed checkpoints, newest first."""
    found = [(match, path) for path in folder.glob("step-*") if (match := _NAME.match(path.name)) and (path / MANIFEST).is_file()]
    return sorted((Saved(int(match[1]), path) for match, path in found), key=lambda saved: -saved.step)


def path_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def set_aside(saved: Saved) -> None:
    """Rename a damaged checkpoint. As the newest one, it would be kept, and a good one removed."""
    with contextlib.suppress(OSError):
        saved.path.rename(saved.path.with_name(f"{saved.path.name}.damaged"))


def lock(folder: Path) -> bool:
    """Whether this process may write here. False while another process does, whose weights would get the same steps."""
    path = folder.resolve() / WRITER
    if path in _locked:
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(_locked[path])):
                return True
        os.close(_locked.pop(path))  # the folder was removed meanwhile, and may belong to another training by now
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # unlike flock, a process forked by the data loader does not keep it
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            os.close(fd)
            return False  # other errors: a file system without locks, where other writers cannot be found
    _locked[path] = fd
    return True


def begin(folder: Path, step: int) -> Path | Finding | None:
    """A new folder to write into, or a finding that says why nothing can be written.

    None if a good checkpoint of this step is there already, because nothing may replace it, not even for a moment. A checkpoint older than
    the newest is refused, because `resume` would not find it. The folder's name is unique: a writer that was thought dead, and is not,
    must not add its files to the folder, or commit it half-written.
    """
    try:
        there = all_saved(folder)
        if there and there[0].step > step:
            how = f"was not written: {folder} holds one of step {there[0].step}, which resume() would take"
            return _unwritten(step, how, next=("count on from what resume() returned, or use another folder",))
        if any(saved.step == step and find_damage(saved) is None for saved in there):
            return None
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob(".step-*"):
            shutil.rmtree(path, ignore_errors=True)
        partial = folder / f".step-{step:08d}.{uuid.uuid4().hex[:8]}.partial"
        partial.mkdir()
        return partial
    except OSError as error:
        return not_written(folder, step, error)


def finish(partial: Path, step: int, state: dict[str, Any], keep: int, shards: dict[str, dict[str, Any]] | None = None) -> Finding | None:
    """Write the state, commit it beside the shards, and remove the oldest checkpoints. A failure is returned, and leaves nothing behind."""
    try:
        line = write_file(partial / STATE, lambda file: torch.save(state, file))
        commit(partial, step, {**(shards or {}), STATE: line}, {"world_size": group.world_size()})
        prune(partial.parent, keep)
    except OSError as error:
        return abandon(partial, step, error)
    return None


def abandon(partial: Path, step: int, error: OSError) -> Finding:
    shutil.rmtree(partial, ignore_errors=True)
    return not_written(partial.parent, step, error)


def write_file(path: Path, write: Callable[[BinaryIO], object]) -> dict[str, Any]:
    """Write a file, and flush it to the disk; returns its line for the manifest."""
    with path.open("wb", buffering=_BLOCK) as file:
        try:
            write(file)
        except RuntimeError as error:
            # torch reports a failed write as a RuntimeError without a number; the file's own error is its context
            raise (error.__context__ if isinstance(error.__context__, OSError) else error) from error
    return hash_file(path)


def hash_file(path: Path) -> dict[str, Any]:
    """The manifest's line for a file, which is flushed to the disk."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
        return {"bytes": file.tell(), "sha256": digest}


def commit(partial: Path, step: int, files: dict[str, dict[str, Any]], about: dict[str, Any]) -> Saved:
    """Give the folder its final name. Until this returns, the checkpoint before it is the newest one."""
    folder = partial.parent
    manifest = json.dumps({"schema": 1, "step": step, **about, "files": files}, indent=1)
    write_file(partial / MANIFEST, lambda file: file.write(manifest.encode()))
    for path in {partial, *((partial / name).parent for name in files)}:
        sync_folder(path)
    target = path_of(folder, step)
    _remove(target)  # only a damaged checkpoint can be there
    partial.rename(target)
    sync_folder(folder)
    saved = Saved(step, target)
    _point_to(folder / LAST, saved)
    return saved


def prune(folder: Path, keep: int) -> None:
    """Remove all but the `keep` newest checkpoints."""
    for saved in all_saved(folder)[keep:]:
        _remove(saved.path)


def find_damage(saved: Saved) -> str | None:
    """What is wrong with the checkpoint's bytes; None if they are what was written."""
    try:
        manifest = json.loads((saved.path / MANIFEST).read_bytes())
        if manifest["step"] != saved.step:
            return f"it is of step {manifest['step']}, its folder was renamed or copied"
        if STATE not in manifest["files"]:
            return f"{MANIFEST} does not list {STATE}"
        for name, wanted in manifest["files"].items():
            there = hash_file(saved.path / name)
            if there["bytes"] != wanted["bytes"]:
                return f"{name} has {there['bytes']} bytes, {wanted['bytes']} were written"
            if there["sha256"] != wanted["sha256"]:
                return f"{name} has other content than was written"
    except OSError as error:
        return f"{error.filename or saved.path}: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} cannot be read"
    return None


def _remove(path: Path) -> None:
    """Rename, then remove: a folder that is half removed must not look like a checkpoint."""
    hidden = path.with_name(f".{path.name}.removed")
    with contextlib.suppress(FileNotFoundError):
        path.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _point_to(link: Path, saved: Saved) -> None:
    beside = link.with_name(f".{link.name}")
    with contextlib.suppress(OSError):  # a convenience; some file systems have no links
        beside.unlink(missing_ok=True)
        beside.symlink_to(Path(saved.path.name) / STATE)
        beside.replace(link)


def other_weights(step: int) -> Finding:
    how = "was not written: one with other weights has this number, and was kept"
    return _unwritten(step, how, next=("give each save a number of its own: checkpoints.save(step.count)",))


def not_written(folder: Path, step: int, error: OSError) -> Finding:
    there = all_saved(folder)
    try:
        free = f", {shutil.disk_usage(folder).free / 2**20:.0f} MiB free"
    except OSError:
        free = ""
    last = f"the last good one is of step {there[0].step}" if there else "there is no earlier one"
    what, way_out = what_stops(error)
    return _unwritten(step, f"could not be written: {what}{free}; {last}", why=f"{folder}: {error}", next=(way_out,))


def _unwritten(step: int, how: str, **details: Any) -> Finding:
    return load_cause("RW707").finding(f"the checkpoint of step {step} {how}", certain=True, **details)


def damaged(what: Path | str, problem: str) -> Finding:
    return load_cause("RW708").finding(f"{what} is damaged: {problem}", certain=True)


def unsafe(path: Path, asked_for: str) -> Finding:
    return load_cause("RW731").finding(
        f"{path} would run code when loaded, and was refused",
        certain=True,
        why=f"it asks for {asked_for}; rankwise writes nothing of the kind, so somebody else has changed the checkpoint",
        next=("remove it, and find out who could write to that folder",),
    )
