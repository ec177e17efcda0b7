"""How the server and its models are at this moment, as plain data."""

from __future__ import annotations

import time
from typing import Any

from rankwise.serve.answering import Answering
from rankwise.serve.catalogue import Catalogue
from rankwise.serve.health import Health
from rankwise.serve.page.findings import Findings
from rankwise.version import __version__

_OF_WORKER = ("number", "device", "ready", "holds", "memory_bytes", "running")
_OF_MODEL = ("queued", "running", "replicas", "memory_bytes", "mean_batch", "p50_s", "p99_s", "loads", "evictions", "rerun", "finding")


class Status:
    def __init__(self, catalogue: Catalogue, health: Health, findings: Findings) -> None:
        self._catalogue, self._health, self._findings = catalogue, health, findings
        self._started = time.time()

    def now(self) -> dict[str, Any]:
        stats = self._catalogue.pool.stats()
        return {
            "version": __version__,
            "up_s": round(time.time() - self._started, 1),
            "not_ready": self._health.why_not_ready(),
            "restarts": stats["restarts"],
            "workers": [{key: worker[key] for key in _OF_WORKER} for worker in stats["workers"]],
            "models": [self._model(model, stats["models"].get(model.key)) for model in self._catalogue.all],
            "findings": self._findings.latest(),
        }

    def _model(self, model: Answering, numbers: dict[str, Any] | None) -> dict[str, Any]:
        return {
            "name": model.name,
            "version": model.version,
            "state": model.state,
            "reason": model.reason,
            "answered": model.tally.succeeded,
            "failed": model.tally.failed,
            "inputs": [{"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)} for spec in model.inputs],
            **{key: numbers[key] if numbers is not None else None for key in _OF_MODEL},
        }
