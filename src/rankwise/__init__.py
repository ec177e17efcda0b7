"""Distributed PyTorch without the mystery: find the mistake, watch the job, use the model."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# name: the module it lives in; looked up on first use, so that `import rankwise` stays quick and never imports torch
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
    "predict": "rankwise.predict.running",
    "gather_predictions": "rankwise.predict.gathering",
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
    "predict",
    "gather_predictions",
    "serve",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rankwise' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
