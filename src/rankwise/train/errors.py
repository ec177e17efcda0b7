"""Errors that stop a start or a training, each with its finding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rankwise.causes import load_cause
from rankwise.errors import TrainError
from rankwise.findings import Finding, Place
from rankwise.stages import Stage

_MAX_PLACES = 64


def start_finding(
    code: str, summary: str, culprits: Iterable[Place] = (), *, certain: bool = True, stage: Stage | None = None, **details: Any
) -> Finding:
    """A finding of the stage that its cause belongs to, or of `stage` for a cause that may stop several stages."""
    cause = load_cause(code)
    stage_name = stage.name if stage else cause.stage
    return cause.finding(summary, certain=certain, culprits=tuple(culprits)[:_MAX_PLACES], stage=stage_name, **details)


def train_error(code: str, summary: str, rank: int | None = None, **details: Any) -> TrainError:
    """An error that stops a training; `rank` is the rank to blame, if there is a single one."""
    culprits = () if rank is None else (Place(rank=rank),)
    return TrainError(load_cause(code).finding(summary, certain=True, culprits=culprits, **details))
