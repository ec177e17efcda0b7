"""Distributed PyTorch without the mystery: find the mistake, watch the job, use the model."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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

# name: the module it lives in; `import rankwise` stays quick and never imports torch
_HOMES = {
    "Finding": "rankwise.findings",
    "RankwiseError": "rankwise.errors",
    "StartError": "rankwise.errors",
    "WorkerError": "rankwise.errors",
    "session": "rankwise.train.session",
    "spawn": "rankwise.train.spawn",
    "load_weights": "rankwise.weights.loading",
    "Pool": "rankwise.pool",
    "Model": "rankwise.pool",
    "PoolFull": "rankwise.pool",
    "DeadlineExceeded": "rankwise.pool",
    "Quarantined": "rankwise.pool",
    "remote": "rankwise.broker",
    "predict": "rankwise.offline.running",
    "gather_predictions": "rankwise.offline.gathering",
    "serve": "rankwise.serve.serving",
}
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

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'rankwise' has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
