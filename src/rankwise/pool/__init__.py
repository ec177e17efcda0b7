"""Many models, many worker processes, one `submit`. Begin with `api/pool.py`.

A request passes through `api` (Pool, Model, streams, ensembles), `memory` (values become bytes in shared memory), `schedule` (decides who
runs what), `transport` (to the workers and back) and `workers` (what runs in them, and who starts and watches them), and back the same way.
`backend.py` is what `Pool` needs of an engine: `processes.py` (worker processes) and `inprocess.py` (`workers=0`) are engines, and so is
the room `cluster` beside this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankwise.late import late_names

if TYPE_CHECKING:
    from rankwise.pool.api.model import Model
    from rankwise.pool.api.pool import Pool
    from rankwise.pool.errors import DeadlineExceeded, ModelUnavailable, PoolClosed, PoolError, PoolFull, Quarantined, TaskHung

__all__ = ["Pool", "Model", "PoolError", "PoolFull", "PoolClosed", "DeadlineExceeded", "Quarantined", "TaskHung", "ModelUnavailable"]

if not TYPE_CHECKING:  # looked up on first use: a worker needs only a part of this package, and starts sooner
    _homes = {"rankwise.pool.api.pool": ("Pool",), "rankwise.pool.api.model": ("Model",), "rankwise.pool.errors": __all__[2:]}
    __getattr__, __dir__ = late_names(__name__, _homes)
