"""Distributed PyTorch without the mystery: find the mistake, watch the job, use the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankwise.late import late_names
from rankwise.version import __version__

if TYPE_CHECKING:  # what type checkers and editors see; at run time each is looked up on first use, below
    from rankwise.broker import remote
    from rankwise.errors import RankwiseError, StartError, WorkerError
    from rankwise.findings import Finding
    from rankwise.offline.gathering import gather_predictions
    from rankwise.offline.running import predict
    from rankwise.pool import DeadlineExceeded, Model, Pool, PoolFull, Quarantined
    from rankwise.serve.serving import serve
    from rankwise.train.session import session
    from rankwise.train.spawn import spawn
    from rankwise.weights.loading import load_weights

__all__ = [
    "Finding",
    "RankwiseError",
    "StartError",
    "WorkerError",
    "session",
    "spawn",
    "load_weights",
    "Pool",
    "Model",
    "PoolFull",
    "DeadlineExceeded",
    "Quarantined",
    "remote",
    "predict",
    "gather_predictions",
    "serve",
    "__version__",
]


if not TYPE_CHECKING:  # a checker would take every name to be there
    __getattr__, __dir__ = late_names(
        __name__,
        {
            "rankwise.findings": ("Finding",),
            "rankwise.errors": ("RankwiseError", "StartError", "WorkerError"),
            "rankwise.train.session": ("session",),
            "rankwise.train.spawn": ("spawn",),
            "rankwise.weights.loading": ("load_weights",),
            "rankwise.pool": ("Pool", "Model", "PoolFull", "DeadlineExceeded", "Quarantined"),
            "rankwise.broker": ("remote",),
            "rankwise.offline.running": ("predict",),
            "rankwise.offline.gathering": ("gather_predictions",),
            "rankwise.serve.serving": ("serve",),
            "rankwise.version": ("__version__",),
        },
    )
