"""Refuses checkpoints that an unpickler would have to run code for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rankwise.weights.records import CheckpointError, Content
from rankwise.weights.state_dicts import find_state_dicts

_SHOWN = 8


def check_harmless(content: Content, path: Path, tensors_only: bool) -> None:
    """Raise if the checkpoint asks for more than tensors. Nothing of what it asks for was, or will be, run."""
    if content.would_run and not (tensors_only and content.tree):
        raise refusal(path, content.would_run, has_tensors=bool(find_state_dicts(content)))


def refusal(path: Path, would_run: Sequence[str], has_tensors: bool) -> CheckpointError:
    shown = would_run[:_SHOWN]
    more = [f"and {len(would_run) - len(shown):,} more"] if len(would_run) > len(shown) else []
    steps = ("its tensors alone can be read, without building anything: tensors_only=True (--tensors-only)",) if has_tensors else ()
    why = "\n".join(["it asks for", *shown, *more])
    return CheckpointError("RW731", f"{path} would run code when loaded, and was refused", why=why, next=steps)
