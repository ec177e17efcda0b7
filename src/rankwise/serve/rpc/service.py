"""The methods of the inference service: each takes a request message and gives the answer, or raises RequestError."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from google.protobuf import json_format

from rankwise.serve.catalogue import Catalogue
from rankwise.serve.errors import NotFound
from rankwise.serve.health import Health
from rankwise.serve.rest import server_metadata
from rankwise.serve.rpc.tensors import read_infer, write_infer
from rankwise.serve.rpc.types import POOL, message


class Service:
    """`call_of` gives what answers a method: it takes the request, and what is left of the client's own deadline."""

    def __init__(self, catalogue: Catalogue, health: Health) -> None:
        self._catalogue, self._health = catalogue, health
        self._facts: dict[str, Callable[[Any], dict[str, Any]]] = {
            "ServerLive": lambda _: {"live": not health.why_not_live()},
            "ServerReady": lambda _: {"ready": not health.why_not_ready()},
            "ServerMetadata": lambda _: server_metadata(),
            "ModelReady": lambda asked: {"ready": self._is_ready(asked)},
            "ModelMetadata": lambda asked: catalogue.metadata(asked.name, asked.version),
            "ModelConfig": lambda asked: {"config": catalogue.config(asked.name, asked.version)},
            "ModelStatistics": lambda asked: {"model_stats": catalogue.statistics(asked.name, asked.version)},
            "RepositoryIndex": lambda asked: {"models": catalogue.index(asked.ready)},
        }

    def call_of(self, method: str) -> Callable[[Any, float | None], Awaitable[Any]]:
        return self.infer if method == "ModelInfer" else partial(self._answer, method)

    async def infer(self, request: Any, remaining_s: float | None) -> Any:
        model = self._catalogue.find(request.model_name, request.model_version)
        asked, is_raw = read_infer(request)
        asked.remaining_s = remaining_s
        return write_infer(await model.infer(asked), is_raw)

    async def _answer(self, method: str, request: Any, _: float | None) -> Any:
        facts: dict[str, Any] = {}
        if method in self._facts:
            facts = self._facts[method](request)
        else:
            self._health.check_control()
            if method == "RepositoryModelLoad":
                await self._catalogue.load(request.model_name)
            else:
                self._catalogue.unload(request.model_name)
        response = message(f"inference.{method}Response")()
        return json_format.ParseDict(facts, response, ignore_unknown_fields=True, descriptor_pool=POOL)

    def _is_ready(self, request: Any) -> bool:
        try:
            return self._catalogue.find(request.name, request.version).state == "READY"
        except NotFound:
            return False
