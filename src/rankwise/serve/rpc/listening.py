"""The gRPC server: finds the method, checks the token, answers, turns errors into status codes, counts and logs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf import json_format

from rankwise.errors import UsageError
from rankwise.serve.access import AccessGuard, log_request, request_id
from rankwise.serve.catalogue import Catalogue
from rankwise.serve.errors import NotFound, RequestError
from rankwise.serve.health import Health
from rankwise.serve.numbers import Numbers
from rankwise.serve.rest import server_metadata
from rankwise.serve.rpc.contents import read_infer, write_infer
from rankwise.serve.rpc.types import POOL, SERVICES, message, methods
from rankwise.serve.tracing import Tracing

log = logging.getLogger("rankwise.serve")
_OPEN = ("ServerLive", "ServerReady")
_SLACK_S = 0.02  # our deadline is so much earlier than the client's, so that the client gets our error and not its own
ReflectionResponse = message("grpc.reflection.v1alpha.ServerReflectionResponse")
HealthResponse = message("grpc.health.v1.HealthCheckResponse")
_NOT_FOUND = 5
_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = 1, 2, 3
_LOOK_S = 1.0  # between two looks at the health that clients watch


class GrpcServer:
    def __init__(
        self, catalogue: Catalogue, health: Health, guard: AccessGuard, numbers: Numbers, tracing: Tracing, max_bytes: int
    ) -> None:
        self._catalogue, self._health, self._guard, self._numbers, self._tracing = catalogue, health, guard, numbers, tracing
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
        sizes = [("grpc.max_receive_message_length", max_bytes), ("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)]
        self._server = grpc.aio.server(options=sizes)
        for name in SERVICES:
            handlers = {method.name: self._handler(method) for method in methods(name)}
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))

    async def start(self, address: str, certificate: str, private_key: str) -> int:
        """The port it listens on."""
        try:
            if certificate:
                pair = Path(private_key or certificate).read_bytes(), Path(certificate).read_bytes()
                found = self._server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
            else:
                found = self._server.add_insecure_port(address)
        except (RuntimeError, OSError):
            found = 0
        if not found:
            raise UsageError(f"cannot listen on {address} for gRPC", next=("choose another port; 0 is any that is free",))
        await self._server.start()
        return int(found)

    async def stop(self, grace_s: float) -> None:
        await self._server.stop(grace_s)

    def _handler(self, method: Any) -> Any:
        own = {
            "ModelStreamInfer": (grpc.stream_stream_rpc_method_handler, self._stream),
            "Check": (grpc.unary_unary_rpc_method_handler, self._check_health),
            "Watch": (grpc.unary_stream_rpc_method_handler, self._watch_health),
            "ServerReflectionInfo": (grpc.stream_stream_rpc_method_handler, _reflect),
        }
        kind, answer = own.get(method.name) or (grpc.unary_unary_rpc_method_handler, self._unary(method.name))
        return kind(answer, message(method.input_type.full_name).FromString, message(method.output_type.full_name).SerializeToString)

    def _unary(self, name: str) -> Callable[[Any, Any], Any]:
        call = self._infer if name == "ModelInfer" else partial(self._answer, name)

        async def answer(request: Any, context: Any) -> Any:
            with self._tracing.span("infer" if name == "ModelInfer" else name, _metadata(context)) as said:
                return await counted_answer(request, context, said)

        async def counted_answer(request: Any, context: Any, said: dict[str, Any]) -> Any:
            started, status, error_text = time.monotonic(), "CANCELLED", ""
            ident = request_id(str(_metadata(context).get("x-request-id", "")))
            model = getattr(request, "model_name", "") if name == "ModelInfer" else ""
            try:
                if name not in _OPEN:
                    self._guard.check_token(str(_metadata(context).get("authorization", "")))
                response = await call(request, _remaining_s(context))
                status = "OK"
                return response
            except RequestError as error:
                status, error_text = error.grpc, str(error)
            except Exception:  # a fault of ours: the client learns only that it happened, the log has the traceback
                log.exception("request %s failed", ident)
                status, error_text = "INTERNAL", f"an error inside the server; its log has it under {ident}"
            finally:
                self._numbers.count("grpc", model if status not in ("NOT_FOUND", "CANCELLED") else "", status, started)
                log_request("grpc", ident, name, status, started, model, error_text)
                said.update(method=name, model=model, status=status, id=ident, error=error_text)
            await context.abort(getattr(grpc.StatusCode, status), _plain(error_text))
            return None

        return answer

    async def _stream(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Answer one request after the other; a failure is told in its place, and the stream goes on."""
        response = message("inference.ModelStreamInferResponse")
        try:
            self._guard.check_token(str(_metadata(context).get("authorization", "")))
        except RequestError as error:
            await context.abort(getattr(grpc.StatusCode, error.grpc), str(error))
        async for request in requests:
            started, status = time.monotonic(), "OK"
            try:
                answer = response(infer_response=await self._infer(request, _remaining_s(context)))
            except RequestError as error:
                answer, status = response(error_message=str(error)), error.grpc
                answer.infer_response.id = request.id
            self._numbers.count("grpc", request.model_name if status != "NOT_FOUND" else "", status, started)
            yield answer

    async def _infer(self, request: Any, remaining_s: float | None) -> Any:
        """`remaining_s`: what is left of the client's own deadline."""
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

    async def _check_health(self, request: Any, context: Any) -> Any:
        status = self._health_of(request.service)
        if status == _SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service")
        return HealthResponse(status=status)

    async def _watch_health(self, request: Any, context: Any) -> AsyncIterator[Any]:
        last = None
        while True:
            status = self._health_of(request.service)
            if status != last:
                yield HealthResponse(status=status)
                last = status
            await asyncio.sleep(_LOOK_S)

    def _health_of(self, service: str) -> int:
        if service and service not in SERVICES:
            return _SERVICE_UNKNOWN
        return _NOT_SERVING if self._health.why_not_ready() else _SERVING


async def _reflect(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
    """Answer which services there are and what their messages look like, for grpcurl and similar tools."""
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


def _metadata(context: Any) -> dict[str, str | bytes]:
    return dict(tuple(pair) for pair in context.invocation_metadata() or ())


def _remaining_s(context: Any) -> float | None:
    left = context.time_remaining()
    return None if left is None or left > 1e8 else max(0.0, left - _SLACK_S)


def _plain(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode()[:2000]
