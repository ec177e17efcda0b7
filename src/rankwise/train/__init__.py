"""Training helpers that prevent common mistakes. Each works alone in a plain PyTorch loop; none hides model, optimizer or loop.

Reading order: `session`, `sample_plan` (who gets which sample), `loader`, `windows` (what a batch weighs), `step`, `wrapping`, `metrics`,
`checkpoints`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankwise.late import late_names

if TYPE_CHECKING:  # as in `rankwise/__init__.py`: at run time each name is looked up on first use, below
    from rankwise.train.checkpoints import Checkpoints
    from rankwise.train.group import rank_zero
    from rankwise.train.loader import Loader
    from rankwise.train.metrics import Means, Predictions
    from rankwise.train.step import Step, sharded_optimizer
    from rankwise.train.wrapping import unwrap, wrap

__all__ = ["Checkpoints", "Loader", "Means", "Predictions", "Step", "rank_zero", "sharded_optimizer", "unwrap", "wrap"]


if not TYPE_CHECKING:  # a type checker would take every name to exist
    __getattr__, __dir__ = late_names(
        __name__,
        {
            "rankwise.train.checkpoints": ("Checkpoints",),  # its imports from torch take longer than torch itself
            "rankwise.train.group": ("rank_zero",),
            "rankwise.train.loader": ("Loader",),
            "rankwise.train.metrics": ("Means", "Predictions"),
            "rankwise.train.step": ("Step", "sharded_optimizer"),
            "rankwise.train.wrapping": ("unwrap", "wrap"),
        },
    )
