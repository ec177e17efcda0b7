"""Many models, many worker processes, one `submit`: lanes of shared memory, batching, budgets, supervision."""

from __future__ import annotations

from rankwise.pool.model import Model
from rankwise.pool.pool import Pool
from rankwise.pool.verdicts import DeadlineExceeded, ModelUnavailable, PoolClosed, PoolError, PoolFull, Quarantined, TaskHung

__all__ = ["Pool", "Model", "PoolError", "PoolFull", "PoolClosed", "DeadlineExceeded", "Quarantined", "TaskHung", "ModelUnavailable"]
