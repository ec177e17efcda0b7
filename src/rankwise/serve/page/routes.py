"""The page's files and the numbers it asks for, as answers to GET."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rankwise.serve.answering import Answering
from rankwise.serve.catalogue import Catalogue
from rankwise.serve.exchange import HttpRequest, HttpResponse, as_json
from rankwise.serve.health import Health
from rankwise.serve.page.recent import Findings
from rankwise.version import __version__

_FILES = {"/": ("index.html", "text/html"), "/page.js": ("page.js", "text/javascript"), "/page.css": ("page.css", "text/css")}
STATUS = "/status"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = [
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
]
_OF_WORKER = ("number", "device", "ready", "holds", "memory_bytes", "running")
_OF_MODEL = ("queued", "running", "replicas", "memory_bytes", "mean_batch", "p50_s", "p99_s", "loads", "evictions", "rerun", "finding")


class Page:
    def __init__(self, catalogue: Catalogue, health: Health, findings: Findings) -> None:
        folder = Path(__file__).parent
        self._catalogue, self._health, self._findings = catalogue, health, findings
        self._started = time.time()
        self._files = {path: (folder.joinpath(name).read_bytes(), kind) for path, (name, kind) in _FILES.items()}

    @property
    def paths(self) -> tuple[str, ...]:
        return (*_FILES, STATUS)

    def answer(self, request: HttpRequest) -> HttpResponse:
        if request.path == STATUS:
            response = as_json(self._now())
            response.headers.append(("Cache-Control", "no-store"))
            return response
        content, kind = self._files[request.path]
        return HttpResponse(200, [content], f"{kind}; charset=utf-8", [*_HEADERS])

    def _now(self) -> dict[str, Any]:
        """How the server and its models are at this moment."""
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
            "answered": model.tally.of("success")[0],
            "failed": model.tally.of("fail")[0],
            "inputs": [{"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)} for spec in model.inputs],
            **{key: numbers[key] if numbers is not None else None for key in _OF_MODEL},
        }
