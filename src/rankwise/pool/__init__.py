"""Many models, many worker processes, one `submit`. Begin with `api/pool.py`.

A request passes through `api` (Pool, Model, streams, ensembles), `memory` (values become bytes in shared memory), `schedule` (decides who
runs what), `transport` (to the workers and back) and `workers` (what runs in them, and who starts and watches them), and back the same way.
`backend.py` is what `Pool` needs of an engine: `processes.py` (worker processes), `inprocess.py` (`workers=0`) and `ray/` are engines.
"""

from __future__ import annotations

from rankwise.pool.api.model import Model
from rankwise.pool.api.pool import Pool
from rankwise.pool.errors import DeadlineExceeded, ModelUnavailable, PoolClosed, PoolError, PoolFull, Quarantined, TaskHung

__all__ = ["Pool", "Model", "PoolError", "PoolFull", "PoolClosed", "DeadlineExceeded", "Quarantined", "TaskHung", "ModelUnavailable"]
