"""A front-end process: reads HTTP, and turns well-formed requests for inference into arrays and outputs into bodies.

All other requests, also those with mistakes, go to the server as they came, so that one place answers them in one way.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
import sys
import time
from typing import Any

from rankwise.serve.access import AccessGuard
from rankwise.serve.binary import read_infer
from rankwise.serve.errors import RequestError
from rankwise.serve.exchange import HttpRequest, HttpResponse
from rankwise.serve.fronts.framing import CANCEL, DRAIN, HEARTBEAT, INFER, OUTPUTS, REQUEST, RESPONSE, SETUP, Frames, Part, pack, unpack
from rankwise.serve.http import HttpServer, Limits, tls_context
from rankwise.serve.infer_request import InferRequest, InferResponse
from rankwise.serve.rest import inflated, written

HEARTBEAT_S = 1.0
_TRACED = ("traceparent", "tracestate")
Reply = tuple[int, Any, memoryview]


class ServerConnection(Frames):
    """The connection to the server: sends requests and matches the answers to them."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self.setup: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self.drain_s: asyncio.Future[float] = self._loop.create_future()  # cancelled where the server is gone

    async def request(self, kind: int, head: Any, raw: list[Part]) -> Reply:
        number = next(self._numbers) & 0xFFFFFFFF
        self.send(kind, number, head, raw)
        waiter: asyncio.Future[Reply] = self._loop.create_future()
        self._waiting[number] = waiter
        try:
            return await waiter
        except asyncio.CancelledError:
            self.send(CANCEL, number)
            raise
        finally:
            del self._waiting[number]

    def receive(self, kind: int, number: int, head: Any, raw: memoryview) -> None:
        if kind == SETUP:
            self.setup.set_result(head)
        elif kind == DRAIN:
            self.drain_s.set_result(head)
        elif (waiter := self._waiting.get(number)) is not None and not waiter.done():
            waiter.set_result((kind, head, raw))

    def connection_lost(self, error: Exception | None) -> None:
        self.setup.cancel()
        self.drain_s.cancel()


class RequestHandler:
    """Answers the requests of this process' connections."""

    def __init__(self, server: ServerConnection, setup: dict[str, Any]) -> None:
        self._server, self._guard = server, AccessGuard(setup["token"], setup["is_loopback"])
        self._max_body = int(setup["limits"]["body_bytes"])

    async def respond(self, request: HttpRequest) -> HttpResponse:
        if request.method == "POST" and request.path.endswith("/infer"):
            response = await self._infer(request)
            if response is not None:
                return response
        head = (request.method, request.path, request.headers, request.query)
        return _response(await self._server.request(REQUEST, head, [request.body]))

    async def _infer(self, request: HttpRequest) -> HttpResponse | None:
        """The response to a request for inference; None for a request that the server has to read itself."""
        started, headers = time.monotonic(), request.headers
        given, accepts = headers.get("x-request-id", ""), headers.get("accept-encoding", "")
        try:
            self._guard.check_http(request.path, headers)
            body, length = await inflated(request, self._max_body), headers.get("inference-header-content-length")
            raws: list[Part] = [body]
            if length == "0":  # no JSON at all: only the model says what these bytes are
                asked, wanted, layout = InferRequest({}), {"": True}, None
            else:
                asked, wanted = read_infer(body, length, None)
                layout, raws = pack((name, datatype, array) for name, (datatype, array) in asked.inputs.items())
            traced = {key: headers[key] for key in _TRACED if key in headers}
            head = (request.path, given, started, asked.outputs, asked.id, asked.parameters, wanted, accepts, traced, layout)
            reply = await self._server.request(INFER, head, raws)
        except (RequestError, TypeError):  # TypeError: a parameter that JSON can read but not write again
            return None
        kind, found, raw = reply
        if kind == RESPONSE:
            return _response(reply)
        assert kind == OUTPUTS
        name, version, ident, parameters, outputs, request_id = found
        answer = InferResponse(name, version, ident, unpack(outputs, raw), parameters)
        response = await written(answer, wanted, accepts)
        if given:
            response.headers.append(("X-Request-Id", request_id))
        return response


def _response(reply: Reply) -> HttpResponse:
    status, content_type, headers, model = reply[1]
    return HttpResponse(status, [reply[2]] if reply[2] else [], content_type, [(name, value) for name, value in headers], model)


async def serve(frames: socket.socket, connections: socket.socket) -> None:
    """Serve connections until the server ends."""
    loop = asyncio.get_running_loop()
    _, server = await loop.connect_accepted_socket(ServerConnection, frames)
    try:
        setup = await server.setup
    except asyncio.CancelledError:
        return
    http = HttpServer(RequestHandler(server, setup).respond, Limits(**setup["limits"]))
    context = tls_context(setup["certificate"], setup["private_key"])
    opening: set[asyncio.Task[Any]] = set()

    def opened(task: asyncio.Task[Any]) -> None:
        opening.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved so that asyncio does not log it: a client broke off, or does not speak TLS

    def accept() -> None:
        try:
            data, fds, _, _ = socket.recv_fds(connections, 1, 1)
        except BlockingIOError:
            return
        if not data:  # the server is gone
            loop.remove_reader(connections.fileno())
        for fd in fds:
            client = socket.socket(fileno=fd)
            client.setblocking(False)
            task = loop.create_task(loop.connect_accepted_socket(http.connect, client, ssl=context))
            opening.add(task)
            task.add_done_callback(opened)

    async def send_heartbeats() -> None:
        while True:
            server.send(HEARTBEAT)
            await asyncio.sleep(HEARTBEAT_S)

    connections.setblocking(False)
    loop.add_reader(connections.fileno(), accept)
    running = [loop.create_task(http.sweep()), loop.create_task(send_heartbeats())]
    try:
        await http.drain(await server.drain_s)
    except asyncio.CancelledError:
        pass
    for task in running:
        task.cancel()
    server.close()


def main(frames: int, connections: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # the server handles these, and then ends its front ends
        signal.signal(number, signal.SIG_IGN)
    asyncio.run(serve(socket.socket(fileno=frames), socket.socket(fileno=connections)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
