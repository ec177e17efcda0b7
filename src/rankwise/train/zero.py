"""An optimizer whose state is spread over the ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from rankwise.train import group


def sharded_optimizer(kind: type[torch.optim.Optimizer], parameters: Iterable[torch.Tensor], **options: Any) -> torch.optim.Optimizer:
    """The optimizer with each rank keeping the state of its own part of the parameters; the plain one where there is one rank."""
    if group.world_size() == 1:
        return kind(parameters, **options)
    return ZeroRedundancyOptimizer(parameters, optimizer_class=kind, **options)
