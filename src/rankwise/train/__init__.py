"""Training helpers that cannot be held wrong: each works alone in a plain PyTorch loop, none hides the model, the optimizer or the loop.

Reading order: `session`, `plan` (who gets which sample), `loader`, `windows` (what a batch weighs), `step`, `wrapping`, `metrics`,
`checkpoints`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # as in `rankwise/__init__.py`: at run time each is looked up on first use, below
    from rankwise.train.checkpoints import Checkpoints
    from rankwise.train.group import rank_zero
    from rankwise.train.loader import Loader
    from rankwise.train.metrics import Means, Predictions
    from rankwise.train.step import Step, sharded_optimizer
    from rankwise.train.wrapping import unwrap, wrap

# name: the module it lives in; what torch needs for `Checkpoints` takes a rank that only asks for a session longer than torch itself
_HOMES = {
    "Checkpoints": "checkpoints",
    "Loader": "loader",
    "Means": "metrics",
    "Predictions": "metrics",
    "Step": "step",
    "rank_zero": "group",
    "sharded_optimizer": "step",
    "unwrap": "wrapping",
    "wrap": "wrapping",
}
__all__ = ["Checkpoints", "Loader", "Means", "Predictions", "Step", "rank_zero", "sharded_optimizer", "unwrap", "wrap"]


if not TYPE_CHECKING:  # a checker would take every name to be there

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'rankwise.train' has no attribute {name!r}")
        return getattr(importlib.import_module(f"rankwise.train.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
