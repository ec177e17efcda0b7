"""Many models, many worker processes, one `submit`. Begin with `api/pool.py`.

A request passes through `api` (Pool, Model, streams, ensembles), `memory` (values become bytes in shared memory), `schedule` (decides who
runs what), `transport` (to the workers and back) and `workers` (what runs in them, and who starts and watches them), and back the same way.
`backend.py` is what `Pool` needs of an engine: `processes.py` (worker processes), `inprocess.py` (`workers=0`) and `ray/` are engines.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankwise.pool.api.model import Model
    from rankwise.pool.api.pool import Pool
    from rankwise.pool.errors import DeadlineExceeded, ModelUnavailable, PoolClosed, PoolError, PoolFull, Quarantined, TaskHung

__all__ = ["Pool", "Model", "PoolError", "PoolFull", "PoolClosed", "DeadlineExceeded", "Quarantined", "TaskHung", "ModelUnavailable"]
_HOMES = {"Pool": "rankwise.pool.api.pool", "Model": "rankwise.pool.api.model"}  # all others are errors

if not TYPE_CHECKING:  # looked up on first use: a worker needs a part of this package, and starts the sooner

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'rankwise.pool' has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES.get(name, "rankwise.pool.errors")), name)
