"""What stops a start or a training: findings of this room's causes, and the errors that hold them."""

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
    """A finding of the stage that its cause keeps a job from passing, or of another one where the cause stands for several."""
    cause = load_cause(code)
    stage_name = stage.name if stage else cause.stage
    return cause.finding(summary, certain=certain, culprits=tuple(culprits)[:_MAX_PLACES], stage=stage_name, **details)


def train_error(code: str, summary: str, rank: int | None = None, **details: Any) -> TrainError:
    """What stops a training; `rank` is the one to blame, where it is one."""
    culprits = () if rank is None else (Place(rank=rank),)
    return TrainError(load_cause(code).finding(summary, certain=True, culprits=culprits, **details))
