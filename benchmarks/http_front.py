"""What an HTTP library costs before any model runs: the same answer to the same request, with each of those that are installed.

    python benchmarks/http_front.py [seconds]

The request is an infer request of 3 KB, the answer 400 bytes; 8 connections, kept alive, from another process. Rounds are interleaved.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

ANSWER = b'{"model_name":"mlp","model_version":"1","outputs":[' + b"0.5," * 85 + b"0]}"
BODY = b"x" * 3136
REQUEST = b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
CONNECTIONS, ROUNDS = 8, 5


async def asgi(scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(ANSWER)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})


def serve_uvicorn(port: int) -> None:
    import uvicorn

    uvicorn.run(asgi, port=port, log_level="error", http="httptools", loop="uvloop", access_log=False, lifespan="off")


def serve_granian(port: int) -> None:
    from granian import Granian

    Granian("benchmarks.http_front:asgi", port=port, interface="asgi", log_enabled=False).serve()


def serve_aiohttp(port: int) -> None:
    from aiohttp import web

    async def infer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=ANSWER, content_type="application/json")

    app = web.Application()
    app.router.add_post("/v2/models/{name}/infer", infer)
    web.run_app(app, port=port, print=None, access_log=None)


def serve_bare(port: int, with_uvloop: bool = False) -> None:
    import httptools

    class Protocol(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport, self.parser = transport, httptools.HttpRequestParser(self)

        def data_received(self, data: bytes) -> None:
            self.parser.feed_data(data)

        def on_url(self, url: bytes) -> None:
            self.body: list[bytes] = []

        def on_header(self, name: bytes, value: bytes) -> None: ...

        def on_body(self, data: bytes) -> None:
            self.body.append(data)

        def on_message_complete(self) -> None:
            b"".join(self.body)
            asyncio.get_running_loop().create_task(self.answer())

        async def answer(self) -> None:
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(ANSWER)
            self.transport.write(head + ANSWER)

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Protocol, "127.0.0.1", port)
        await server.serve_forever()

    if with_uvloop:
        import uvloop

        uvloop.run(main())
    else:
        asyncio.run(main())


def serve_bare_uvloop(port: int) -> None:
    serve_bare(port, with_uvloop=True)


SERVERS = {
    "asyncio protocol + httptools": (serve_bare, "httptools"),
    "the same on uvloop": (serve_bare_uvloop, "uvloop"),
    "uvicorn (httptools, uvloop)": (serve_uvicorn, "uvicorn"),
    "granian (1 worker, ASGI)": (serve_granian, "granian"),
    "aiohttp": (serve_aiohttp, "aiohttp"),
}


async def load(port: int, seconds: float) -> float:
    """Requests per second."""
    end, done = time.monotonic() + seconds, 0

    async def one() -> None:
        nonlocal done
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.monotonic() < end:
            writer.write(REQUEST)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            await reader.readexactly(len(ANSWER))
            done += 1
        writer.close()

    await asyncio.gather(*[one() for _ in range(CONNECTIONS)])
    return done / seconds


def measured(name: str, seconds: float) -> float:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-m", "benchmarks.http_front", "serve", name, str(port)])
    try:
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.05)
        return asyncio.run(load(port, seconds))
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        SERVERS[sys.argv[2]][0](int(sys.argv[3]))
        return
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    rates: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for name, (_, package) in SERVERS.items():
            try:
                version(package)
            except PackageNotFoundError:
                continue
            rates.setdefault(name, []).append(measured(name, seconds))
    for name, found in rates.items():
        package = f"{SERVERS[name][1]} {version(SERVERS[name][1])}"
        print(f"{name:32} {median(found):8.0f} requests/s   ({min(found):.0f} to {max(found):.0f}), {package}")


if __name__ == "__main__":
    main()
