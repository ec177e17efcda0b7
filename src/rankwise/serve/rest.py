"""The REST side of the Open Inference Protocol, with the extensions that standard clients use."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from rankwise.serve.answering import Answering
from rankwise.serve.binary import Wanted, read_infer, read_json, write_infer
from rankwise.serve.catalogue import Catalogue
from rankwise.serve.errors import NotAllowed, NotFound, RequestError
from rankwise.serve.exchange import HttpRequest, HttpResponse, as_json
from rankwise.serve.health import Health
from rankwise.serve.infer_request import InferResponse
from rankwise.version import __version__

SERVER_NAME = "rankwise"
EXTENSIONS = ["binary_tensor_data", "model_configuration", "model_repository", "schedule_policy", "statistics"]
_LARGE = 256 << 10  # larger bodies are packed and unpacked in a thread beside the event loop
_MOST_PATHS = 1000
_AUTO, _GZIP, _RAW = 32 + zlib.MAX_WBITS, 16 + zlib.MAX_WBITS, -zlib.MAX_WBITS
_LEVEL = 1  # a higher level of compression hardly makes tensors smaller
_LEAST = 256  # bytes; a smaller body is not worth compressing
Handler = Callable[[HttpRequest], HttpResponse]


def server_metadata() -> dict[str, Any]:
    return {"name": SERVER_NAME, "version": __version__, "extensions": EXTENSIONS}


class Rest:
    def __init__(self, catalogue: Catalogue, health: Health, max_body: int) -> None:
        self._catalogue, self._health, self._max_body = catalogue, health, max_body
        self.pages: dict[str, Handler] = {}  # what else is served with GET, by path
        self._asked: dict[str, tuple[str, str]] = {}  # path of an inference request: model and version, so that it is parsed once

    async def respond(self, request: HttpRequest) -> HttpResponse:
        """Raises RequestError."""
        if request.method == "POST" and request.path in self._asked:
            return await self._infer(request)
        page = self.pages.get(request.path)
        if page is not None:
            _allow(request, "GET")
            return page(request)
        match _parts(request.path):
            case ["v2"]:
                return _get(request, server_metadata())
            case ["v2", "health", ("live" | "ready") as what]:
                _allow(request, "GET")
                why = self._health.why_not_live() if what == "live" else self._health.why_not_ready()
                return _yes({what: True}, why)
            case ["v2", "models", "stats"]:
                return _get(request, {"model_stats": self._catalogue.statistics()})
            case ["v2", "models", name, "versions", version, *rest] if version:
                return await self._model(request, name, version, rest)
            case ["v2", "models", name, *rest]:
                return await self._model(request, name, "", rest)
            case ["v2", "repository", "index"]:
                _allow(request, "POST")
                return as_json(self._catalogue.index(bool(self._said(request).get("ready", False))))
            case ["v2", "repository", "models", name, ("load" | "unload") as what]:
                _allow(request, "POST")
                return await self._control(request, name, what)
        raise NotFound(f"there is nothing at {request.path[:200]}")

    async def _model(self, request: HttpRequest, name: str, version: str, rest: list[str]) -> HttpResponse:
        catalogue = self._catalogue
        match rest:
            case ["infer"]:
                _allow(request, "POST")
                return await self._infer(request)
            case ["ready"]:
                _allow(request, "GET")
                model = catalogue.find(name, version)
                why = "" if model.state == "READY" else model.reason or f"model {name!r} is {model.state}"
                return _yes({"name": name, "ready": True}, why)
            case []:
                return _get(request, catalogue.metadata(name, version))
            case ["config"]:
                return _get(request, catalogue.config(name, version))
            case ["stats"]:
                return _get(request, {"model_stats": catalogue.statistics(name, version)})
        raise NotFound(f"there is nothing at {request.path[:200]}")

    async def _infer(self, request: HttpRequest) -> HttpResponse:
        model = self.model_at(request.path)
        body = await inflated(request, self._max_body) if "content-encoding" in request.headers else request.body
        asked, wanted = read_infer(body, request.headers.get("inference-header-content-length"), model)
        answer = await model.infer(asked)
        accepts = request.headers.get("accept-encoding", "")
        return await written(answer, wanted, accepts) if accepts else as_written(answer, wanted)

    def model_at(self, path: str) -> Answering:
        """The model that is asked at this path."""
        known = self._asked.get(path)
        if known is None:
            match _parts(path):
                case ["v2", "models", name, "versions", version, "infer"] if version:
                    known = name, version
                case ["v2", "models", name, "infer"]:
                    known = name, ""
                case _:
                    raise NotFound(f"there is nothing at {path[:200]}")
        model = self._catalogue.find(*known)
        if len(self._asked) < _MOST_PATHS:
            self._asked[path] = known
        return model

    async def _control(self, request: HttpRequest, name: str, what: str) -> HttpResponse:
        self._health.check_control()
        self._said(request)
        if what == "load":
            await self._catalogue.load(name)
        else:
            self._catalogue.unload(name)
        return HttpResponse(model=name)

    def _said(self, request: HttpRequest) -> dict[str, Any]:
        """The JSON object of a request; empty for one without a body."""
        body = _inflate(request.body, request.headers.get("content-encoding", "").strip().lower(), self._max_body)
        said = read_json(body) if body.strip() else {}
        if type(said) is not dict:
            raise RequestError("the request has to be a JSON object, or empty")
        return said


async def inflated(request: HttpRequest, max_body: int) -> bytes:
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if len(request.body) > _LARGE and encoding:
        return await asyncio.to_thread(_inflate, request.body, encoding, max_body)
    return _inflate(request.body, encoding, max_body)


def as_written(answer: InferResponse, wanted: Wanted) -> HttpResponse:
    """The answer to a request for inference."""
    parts, json_bytes = write_infer(answer, wanted)
    response = HttpResponse(200, parts, model=answer.model_name)
    if json_bytes is not None:
        response.content_type = "application/octet-stream"
        response.headers.append(("Inference-Header-Content-Length", str(json_bytes)))
    return response


async def written(answer: InferResponse, wanted: Wanted, accepts: str) -> HttpResponse:
    """The answer as an HTTP response, compressed where the client's Accept-Encoding asks for it."""
    response, encoding = as_written(answer, wanted), _wanted_encoding(accepts)
    if encoding and response.length >= _LEAST:
        parts = response.parts
        packed = await asyncio.to_thread(_deflate, parts, encoding) if response.length > _LARGE else _deflate(parts, encoding)
        response.parts = [packed]
        response.headers.append(("Content-Encoding", encoding))
    return response


# ---- gzip and deflate bodies, in both directions


def _inflate(data: bytes, encoding: str, limit: int) -> bytes:
    """The unpacked body; one that would be larger than `limit` is refused before it is unpacked."""
    if encoding in ("", "identity"):
        return data
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise RequestError(f"Content-Encoding {encoding[:40]!r} is not known; gzip and deflate are", 415)
    try:
        return _inflated(data, _AUTO, limit)
    except zlib.error:
        if encoding != "deflate":
            raise RequestError("the body is not gzip, as Content-Encoding says") from None
    try:
        return _inflated(data, _RAW, limit)  # some clients send deflate without zlib's header
    except zlib.error:
        raise RequestError("the body is not deflate, as Content-Encoding says") from None


def _inflated(data: bytes, wbits: int, limit: int) -> bytes:
    parts, left = [], limit
    while True:
        unpacker = zlib.decompressobj(wbits)
        parts.append(unpacker.decompress(data, left + 1))
        left -= len(parts[-1])
        if left < 0:
            raise RequestError(f"the body unpacks to more than {limit} bytes", 413)
        if not unpacker.eof:
            raise RequestError("the compressed body is cut off")
        if not unpacker.unused_data:
            return b"".join(parts)
        data = unpacker.unused_data  # a gzip file may have several members


def _wanted_encoding(accept: str) -> str:
    """gzip or deflate, where a client asks for just that one. Many libraries list all encodings they know with each request, and packing
    tensors for them would only take time."""
    name = accept.split(";")[0].strip().lower()
    return name if name in ("gzip", "deflate") and "," not in accept and "q=0" not in accept.replace(" ", "") else ""


def _deflate(parts: list[bytes | memoryview], encoding: str) -> bytes:
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP if encoding == "gzip" else zlib.MAX_WBITS)
    return b"".join([*[packer.compress(part) for part in parts], packer.flush()])


# ---- routes


def _parts(path: str) -> list[str]:
    parts = [unquote(part, errors="surrogateescape") for part in path.split("/")[1:]]
    return parts[:-1] if parts and not parts[-1] else parts


def _allow(request: HttpRequest, method: str) -> None:
    if request.method != method and not (request.method == "HEAD" and method == "GET"):
        raise NotAllowed(request.method, method)


def _get(request: HttpRequest, value: object) -> HttpResponse:
    _allow(request, "GET")
    return as_json(value)


def _yes(said: dict[str, Any], why_not: str) -> HttpResponse:
    """Yes is 200, no is 400, as the protocol has it. Triton's clients look at the status only, KServe's at the body as well."""
    if why_not:
        raise RequestError(why_not)
    return as_json(said)
