"""Which services there are and how they look, for grpcurl and its like; and grpc.health.v1."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from rankwise.serve.health import Health
from rankwise.serve.rpc.types import POOL, SERVICES, message

ReflectionResponse = message("grpc.reflection.v1alpha.ServerReflectionResponse")
HealthResponse = message("grpc.health.v1.HealthCheckResponse")
_NOT_FOUND = 5
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
_LOOK_S = 1.0


async def reflect(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
    async for request in requests:
        yield _reflected(request)


def _reflected(request: Any) -> Any:
    answer = ReflectionResponse(valid_host=request.host, original_request=request)
    kind = request.WhichOneof("message_request")
    if kind == "list_services":
        for name in SERVICES:
            answer.list_services_response.service.add(name=name)
        return answer
    try:
        if kind == "file_by_filename":
            file = POOL.FindFileByName(request.file_by_filename)
        elif kind == "file_containing_symbol":
            file = POOL.FindFileContainingSymbol(request.file_containing_symbol)
        else:
            raise KeyError(kind)
        answer.file_descriptor_response.file_descriptor_proto.append(file.serialized_pb)
    except KeyError:
        answer.error_response.error_code, answer.error_response.error_message = _NOT_FOUND, "there is no such thing"
    return answer


def health_of(service: str, health: Health) -> int:
    if service and service not in SERVICES:
        return SERVICE_UNKNOWN
    return NOT_SERVING if health.why_not_ready() else SERVING


async def watch(health: Health, request: Any, context: Any) -> AsyncIterator[Any]:
    last = None
    while True:
        status = health_of(request.service, health)
        if status != last:
            yield HealthResponse(status=status)
            last = status
        await asyncio.sleep(_LOOK_S)
