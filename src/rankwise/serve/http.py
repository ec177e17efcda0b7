"""HTTP/1.1 on a bare asyncio protocol: httptools parses, and the limits that protect the server are here.

A connection is in one of four phases, and each but `busy` has its own time limit: `idle` between requests, `head` from a request's first
byte to the end of its headers, `body` until all of it is there (which may take as long as it keeps coming), `busy` while it is answered.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from email.utils import formatdate
from typing import cast

import httptools

from rankwise.errors import UsageError
from rankwise.serve.errors import NotAllowed, RequestError, Unavailable
from rankwise.serve.exchange import HttpRequest, HttpResponse, as_error

log = logging.getLogger("rankwise.serve")
_PIPELINED = 8  # requests of one connection that may wait behind the one that is answered
_LINGER_S = 2.0  # how long a refused client may go on sending before its connection is cut, so that it can read why
Respond = Callable[[HttpRequest], Awaitable[HttpResponse]]


@dataclass(frozen=True)
class Limits:
    body_bytes: int = 256 << 20
    head_bytes: int = 64 << 10
    buffered_bytes: int = 1 << 30  # of all bodies that are not complete or not answered yet
    connections: int = 2000
    head_s: float = 10.0
    idle_s: float = 75.0
    body_s: float = 10.0  # a body may take so long, and longer while it comes at `body_rate`
    body_rate: float = 64_000.0  # bytes per second
    write_s: float = 30.0  # a client that reads nothing for so long is gone


class HttpServer:
    """All connections of one listening socket."""

    def __init__(self, respond: Respond, limits: Limits) -> None:
        self.respond, self.limits = respond, limits
        self.connections: set[Connection] = set()
        self.buffered = 0
        self.is_draining = False
        self.date = formatdate(usegmt=True)

    def connect(self) -> asyncio.Protocol:
        return Connection(self)

    async def sweep(self) -> None:
        """Ends connections that take too long; forever."""
        while True:
            await asyncio.sleep(min(0.5, self.limits.head_s / 4))
            now, self.date = time.monotonic(), formatdate(usegmt=True)
            for connection in list(self.connections):
                connection.check(now)

    async def drain(self, timeout_s: float) -> None:
        """Finish the requests that are being answered; close all other connections at once."""
        self.is_draining = True
        end = time.monotonic() + timeout_s
        while self.connections and time.monotonic() < end:
            for connection in list(self.connections):
                connection.close_if_idle()
            await asyncio.sleep(0.02)
        for connection in list(self.connections):
            connection.abort()


class Connection(asyncio.Protocol):
    def __init__(self, server: HttpServer) -> None:
        self._server, self._limits = server, server.limits
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[HttpRequest | RequestError] = deque()
        self._task: asyncio.Task[None] | None = None
        self._phase, self._since = "idle", time.monotonic()
        self._held = 0  # bytes of bodies that count towards the server's limit
        self._head_bytes = 0
        self._is_refusing = self._is_paused = False
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._stuck_since: float | None = None
        self._refusal: RequestError | None = None
        self._body: list[bytes] = []
        self._new_message()

    # ---- for asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)
        server = self._server
        server.connections.add(self)
        if len(server.connections) > self._limits.connections:
            self._refuse(Unavailable("there are too many connections"))

    def data_received(self, data: bytes) -> None:
        if self._is_refusing:
            return
        if self._phase == "idle":
            self._enter("head")
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._refusal is None:
                self._ignore_upgrade(data[upgrade.args[0] :])
                return
        except httptools.HttpParserError as error:
            if self._refusal is None:
                self._refusal = RequestError(f"this is not an HTTP request: {error}"[:200])
        if self._refusal is None and self._head_bytes > self._limits.head_bytes:
            self._refusal = RequestError(f"the headers take more than {self._limits.head_bytes} bytes", 431)
        if self._refusal is not None:
            self._refuse(self._refusal)
        elif len(self._waiting) > _PIPELINED and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def eof_received(self) -> None:
        """Like nginx: a client that closes its sending side has gone. asyncio closes the connection."""

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.discard(self)
        self._server.buffered -= self._held
        self._held = 0
        self._may_write.set()
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._may_write.clear()
        self._stuck_since = time.monotonic()

    def resume_writing(self) -> None:
        self._may_write.set()
        self._stuck_since = None

    # ---- for the parser

    def on_message_begin(self) -> None:
        self._new_message()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        if self._task is None:
            self._enter("body")
        self._has_head, self._head_bytes = True, 0
        length = self._headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._limits.body_bytes:
            self._refusal = self._too_large()
        elif self._headers.get("expect", "").lower() == "100-continue" and self._task is None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        self._body.append(data)
        self._body_bytes += len(data)
        self._held += len(data)
        self._server.buffered += len(data)
        if self._body_bytes > self._limits.body_bytes:
            self._refusal = self._too_large()
        elif self._server.buffered > self._limits.buffered_bytes:
            self._refusal = Unavailable("too many large requests are under way")

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        if self._parser.get_http_version() == "0.9":
            self._refusal = RequestError("HTTP/1.0 or HTTP/1.1 is needed")
        if self._parser.should_upgrade() and self._parser.get_method() == b"CONNECT":
            self._refusal = NotAllowed("CONNECT", "GET, POST")
        if self._refusal is not None or self._parser.should_upgrade():
            return
        path, _, query = self._url.decode("latin-1").partition("?")
        if "://" in path[:10]:  # an absolute URL, as clients send to proxies
            path = "/" + path.split("://", 1)[1].partition("/")[2]
        method = self._parser.get_method().decode("latin-1")
        body, keep_alive = b"".join(self._body), self._parser.should_keep_alive()
        self._waiting.append(HttpRequest(method, path, self._headers, body, keep_alive, query))
        self._new_message()
        if self._task is None:
            self._enter("busy")
            self._task = self._loop.create_task(self._answer_all())

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Ignore a request to change to HTTP/2, which some clients send with their first request and do not insist on.

        The parser would take all that follows for HTTP/2, so a new one gets the same request without the Upgrade header.
        """
        lines = [b"%s %s HTTP/1.1" % (self._parser.get_method(), self._url)]
        lines += [f"{name}: {value}".encode("latin-1") for name, value in self._headers.items() if name not in ("upgrade", "connection")]
        self._parser = httptools.HttpRequestParser(self)
        self.data_received(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    # ---- answering

    async def _answer_all(self) -> None:
        while self._waiting:
            request = self._waiting.popleft()
            if isinstance(request, RequestError):
                self._send_last(request)
                break
            response = await self._server.respond(request)
            keep_alive = request.keep_alive and not self._server.is_draining
            self._send(response, keep_alive, with_body=request.method != "HEAD")
            self._let_go(len(request.body))
            if self._stuck_since is not None:
                await self._may_write.wait()
            if not keep_alive:
                self._transport.close()
                break
            if self._is_paused and len(self._waiting) <= _PIPELINED // 2:
                self._is_paused = False
                self._transport.resume_reading()
        self._task = None
        if not self._is_refusing:
            self._enter("body" if self._has_head else "head" if self._head_bytes else "idle")

    def _send(self, response: HttpResponse, keep_alive: bool, with_body: bool = True) -> None:
        if not self._transport.is_closing():
            head = response.head(self._server.date, keep_alive)
            self._transport.writelines([head, *response.parts] if with_body else [head])

    def _refuse(self, error: RequestError) -> None:
        """Answer with this error after the answers under way, and read no more."""
        self._is_refusing = True
        self._enter("refused")
        if self._task is None:
            self._send_last(error)
        else:
            self._waiting.append(error)

    def _send_last(self, error: RequestError) -> None:
        self._enter("refused")
        self._send(as_error(error), keep_alive=False)
        self._let_go(self._held)
        self._body = []
        if self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()
        else:
            self._transport.close()

    def _let_go(self, nbytes: int) -> None:
        nbytes = min(nbytes, self._held)
        self._held -= nbytes
        self._server.buffered -= nbytes

    # ---- time limits

    def check(self, now: float) -> None:
        limits, passed = self._limits, now - self._since
        if self._stuck_since is not None and now - self._stuck_since > limits.write_s:
            self._transport.abort()
        elif self._phase == "head" and passed > limits.head_s:
            self._refuse(RequestError(f"the headers were not complete within {limits.head_s:g} s", 408))
        elif self._phase == "body" and passed > limits.body_s + self._body_bytes / limits.body_rate:
            self._refuse(RequestError("the body comes too slowly", 408))
        elif self._phase == "idle" and passed > limits.idle_s:
            self._transport.close()
        elif self._phase == "refused" and passed > _LINGER_S and self._task is None:
            self._transport.abort()

    def close_if_idle(self) -> None:
        if self._phase in ("idle", "refused") and self._task is None:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def _enter(self, phase: str) -> None:
        self._phase, self._since = phase, time.monotonic()

    def _new_message(self) -> None:
        self._url, self._headers = b"", cast(dict[str, str], {})
        self._body = []
        self._body_bytes = 0
        self._has_head = False

    def _too_large(self) -> RequestError:
        return RequestError(f"the body is larger than {self._limits.body_bytes} bytes, which is the most that is taken", 413)


def tls_context(certificate: str, private_key: str) -> ssl.SSLContext | None:
    if not certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, private_key or None)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"the certificate {certificate} cannot be used: {error.strerror or error}", next=("give PEM files",)) from None
    return context
