"""What is told of checkpoints that could not be written, or must not be read."""

from __future__ import annotations

import shutil
from pathlib import Path

from rankwise.causes import load_cause
from rankwise.findings import Finding
from rankwise.train import committed


def not_written(folder: Path, step: int, error: OSError) -> Finding:
    there = committed.all_saved(folder)
    try:
        free = f", {shutil.disk_usage(folder).free / 2**20:.0f} MiB free"
    except OSError:
        free = ""
    last = f"the last good one is of step {there[0].step}" if there else "there is no earlier one"
    summary = f"the checkpoint of step {step} could not be written: {error.strerror or error}{free}; {last}"
    return load_cause("RW707").finding(summary, certain=True, why=f"{folder}: {error}")


def damaged(path: Path, problem: str) -> Finding:
    return load_cause("RW708").finding(f"{path} is damaged: {problem}", certain=True)


def unsafe(path: Path, asked_for: str) -> Finding:
    return load_cause("RW731").finding(
        f"{path} would run code when loaded, and was refused",
        certain=True,
        why=f"it asks for {asked_for}; rankwise writes nothing of the kind, so somebody else has changed the checkpoint",
        next=("remove it, and find out who could write to that folder",),
    )
