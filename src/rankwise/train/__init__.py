"""Training helpers that cannot be held wrong: each works alone in a plain PyTorch loop, none hides the model, the optimizer or the loop.

Reading order: `session`, `plan` (who gets which sample), `loader`, `windows` (what a batch weighs), `step`, `wrap`, `metrics`,
`checkpoints`.
"""

from rankwise.train.checkpoints import Checkpoints
from rankwise.train.group import rank_zero
from rankwise.train.loader import Loader
from rankwise.train.metrics import Means, Predictions
from rankwise.train.step import Step, sharded_optimizer
from rankwise.train.wrap import unwrap, wrap

__all__ = ["Checkpoints", "Loader", "Means", "Predictions", "Step", "rank_zero", "sharded_optimizer", "unwrap", "wrap"]
