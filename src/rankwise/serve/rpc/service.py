"""The methods of the inference service: each takes a request message and gives the answer, or raises RequestError."""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format

from rankwise.serve.catalogue import Catalogue
from rankwise.serve.errors import NotFound
from rankwise.serve.health import Health
from rankwise.serve.rest import server_metadata
from rankwise.serve.rpc.tensors import read_infer, write_infer
from rankwise.serve.rpc.types import POOL, message


def _answer(method: str, /, **fields: Any) -> Any:
    return json_format.ParseDict(fields, message(f"inference.{method}Response")(), ignore_unknown_fields=True, descriptor_pool=POOL)


class Service:
    """`remaining_s` is what is left of the client's own deadline."""

    def __init__(self, catalogue: Catalogue, health: Health) -> None:
        self._catalogue, self._health = catalogue, health

    async def ServerLive(self, request: Any, remaining_s: float | None) -> Any:
        return _answer("ServerLive", live=not self._health.why_not_live())

    async def ServerReady(self, request: Any, remaining_s: float | None) -> Any:
        return _answer("ServerReady", ready=not self._health.why_not_ready())

    async def ModelReady(self, request: Any, remaining_s: float | None) -> Any:
        try:
            is_ready = self._catalogue.find(request.name, request.version).state == "READY"
        except NotFound:
            is_ready = False
        return _answer("ModelReady", ready=is_ready)

    async def ServerMetadata(self, request: Any, remaining_s: float | None) -> Any:
        return _answer("ServerMetadata", **server_metadata())

    async def ModelMetadata(self, request: Any, remaining_s: float | None) -> Any:
        return _answer("ModelMetadata", **self._catalogue.metadata(request.name, request.version))

    async def ModelConfig(self, request: Any, remaining_s: float | None) -> Any:
        return _answer("ModelConfig", config=self._catalogue.config(request.name, request.version))

    async def ModelStatistics(self, request: Any, remaining_s: float | None) -> Any:
        return _answer("ModelStatistics", model_stats=self._catalogue.statistics(request.name, request.version))

    async def RepositoryIndex(self, request: Any, remaining_s: float | None) -> Any:
        return _answer("RepositoryIndex", models=self._catalogue.index(request.ready))

    async def RepositoryModelLoad(self, request: Any, remaining_s: float | None) -> Any:
        self._health.check_control()
        await self._catalogue.load(request.model_name)
        return _answer("RepositoryModelLoad")

    async def RepositoryModelUnload(self, request: Any, remaining_s: float | None) -> Any:
        self._health.check_control()
        self._catalogue.unload(request.model_name)
        return _answer("RepositoryModelUnload")

    async def ModelInfer(self, request: Any, remaining_s: float | None) -> Any:
        model = self._catalogue.find(request.model_name, request.model_version)
        asked, is_raw = read_infer(request)
        asked.remaining_s = remaining_s
        return write_infer(await model.infer(asked), is_raw)
