"""`rankwise.serve(pool)`: the server around a pool, from its first socket to its last answer."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from rankwise.errors import UsageError
from rankwise.pool import Pool
from rankwise.pool.backend import this_machine
from rankwise.serve.access import LOOPBACK, AccessGuard
from rankwise.serve.answering import Answering
from rankwise.serve.catalogue import Catalogue, Source
from rankwise.serve.front import Front
from rankwise.serve.fronts.front_ends import FrontEnds
from rankwise.serve.health import Health
from rankwise.serve.http import HttpServer, Limits, tls_context
from rankwise.serve.models_file import Entry, ModelsFile, VirtualModel
from rankwise.serve.numbers import Numbers
from rankwise.serve.page.recent import Findings
from rankwise.serve.page.routes import Page
from rankwise.serve.rest import Rest
from rankwise.serve.served import Served
from rankwise.serve.tracing import Tracing
from rankwise.serve.virtual import Virtual

log = logging.getLogger("rankwise.serve")
HTTP, GRPC = "127.0.0.1:8000", "127.0.0.1:8001"
_LOOK_S = 1.0
_BACKLOG = 1024
_LEAST_CORES, _FRONT_ENDS = 8, 2  # from so many cores on, so many front ends; more of them gained nothing (docs/serve.md)
_KEPT = 4  # connections that the server reads itself although it has front ends


@dataclass(frozen=True)
class ServerOptions:
    """`http` and `grpc` are addresses to listen on, empty for none; port 0 is any that is free."""

    http: str = HTTP
    grpc: str = GRPC
    token: str = ""
    certificate: str = ""  # files in PEM, for TLS
    private_key: str = ""
    drain_s: float = 30.0
    traces: str = ""  # where OpenTelemetry spans go: the URL of a collector
    front_ends: int | str = "auto"  # number of processes that read HTTP; with 0 the server's own process does
    limits: Limits = field(default_factory=Limits)


class Server:
    """Listens between `start` and `stop`; both run in one event loop."""

    def __init__(self, pool: Pool, file: ModelsFile, options: ServerOptions, source: Source | None = None) -> None:
        self._options, self._pool = options, pool
        addresses = [parse_address(text) for text in (options.http, options.grpc) if text]
        guard = AccessGuard(options.token, all(host in LOOPBACK for host, _ in addresses))
        self._threads = ThreadPoolExecutor(1, "rankwise-serve") if not pool.stats()["workers"] else None
        self._findings, self._numbers, self._guard = Findings(), Numbers(pool), guard
        self.catalogue = Catalogue(file, pool, self._make, self._numbers.count_shadow, source)
        self._numbers.show_caches(self.catalogue)
        self.health = Health(self.catalogue, guard.may_control)
        self._rest = Rest(self.catalogue, self.health, options.limits.body_bytes)
        self._tracing = Tracing(options.traces)
        page = Page(self.catalogue, self.health, self._findings)
        self._front = Front(self._rest, guard, self._numbers, page, self._tracing)
        self._http = HttpServer(self._front.respond, options.limits)
        self._front_ends: FrontEnds | None = None
        self._grpc: Any = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._listening: asyncio.Server | None = None
        self._tls: ssl.SSLContext | None = None
        self._stop_reading: Callable[[], None] = lambda: None
        self.http_address: tuple[str, int] | None = None
        self.grpc_address: tuple[str, int] | None = None

    def _make(self, said: Entry | VirtualModel, find: Callable[[str], Answering]) -> Answering:
        if isinstance(said, VirtualModel):
            return Virtual(said, find)
        return Served(said, self._pool, self._threads, self._findings.note)

    async def start(self) -> None:
        """Listen at once, and load the models meanwhile."""
        logging.getLogger("rankwise.pool").addHandler(self._findings)
        self._stop_reading = self._pool.read_in(asyncio.get_running_loop())
        if self._options.http:
            await self._start_http(*parse_address(self._options.http))
        if self._options.grpc:
            await self._start_grpc(*parse_address(self._options.grpc))
        self._run(self.catalogue.load_all())
        self._run(self._look())

    async def _start_http(self, host: str, port: int) -> None:
        options, loop = self._options, asyncio.get_running_loop()
        self._tls = tls_context(options.certificate, options.private_key)
        count = front_end_count(options.front_ends)
        try:
            server = await loop.create_server(self._http.connect, host, port, ssl=self._tls, backlog=_BACKLOG, start_serving=not count)
        except OSError as error:
            summary = f"cannot listen on {options.http}: {error.strerror or error}"
            is_elsewhere = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
            step = "give 127.0.0.1, 0.0.0.0, or an address of this host" if is_elsewhere else "choose another port; 0 is any that is free"
            raise UsageError(summary, next=(step,)) from None
        self._listening = server
        address = server.sockets[0].getsockname()
        self.http_address = str(address[0]), int(address[1])
        self._run(self._http.sweep())
        if count:
            sockets = [own.dup() for own in server.sockets]
            for listening in sockets:
                listening.listen(_BACKLOG)
                listening.setblocking(False)
            setup = {"token": options.token, "is_loopback": self._guard.is_loopback}
            setup |= {"certificate": options.certificate, "private_key": options.private_key}
            self._front_ends = FrontEnds(count, self._front, self._rest, options.limits, setup, self._keep)
            self._run(self._front_ends.start(sockets))

    def _keep(self, client: socket.socket, must: bool) -> bool:
        """Read this connection here if few are read here, or if front ends cannot (`must`)."""
        if not must and len(self._http.connections) >= _KEPT:
            return False
        client.setblocking(False)
        self._run(asyncio.get_running_loop().connect_accepted_socket(self._http.connect, client, ssl=self._tls))
        return True

    async def _start_grpc(self, host: str, port: int) -> None:
        from rankwise.serve.rpc.listening import GrpcServer  # grpc takes a while to import

        self._grpc = GrpcServer(self.catalogue, self.health, self._guard, self._numbers, self._tracing, self._options.limits.body_bytes)
        port = await self._grpc.start(address_text(host, port), self._options.certificate, self._options.private_key)
        self.grpc_address = host, port

    async def stop(self) -> None:
        """Refuse new requests, and answer those that are already here, for at most `drain_s`."""
        self.health.is_draining = True
        logging.getLogger("rankwise.pool").removeHandler(self._findings)
        if self._listening is not None:
            self._listening.close()
        ending = [self._http.drain(self._options.drain_s)]
        if self._front_ends is not None:
            ending.append(self._front_ends.stop(self._options.drain_s))
        if self._grpc is not None:
            ending.append(self._grpc.stop(self._options.drain_s))
        await asyncio.gather(*ending)
        ended = list(self._tasks)
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)
        self._stop_reading()
        await asyncio.to_thread(self._tracing.close)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _look(self) -> None:
        while True:
            self.health.look(time.monotonic())
            if self._front_ends is not None:
                self._front_ends.look(time.monotonic())
            await asyncio.sleep(_LOOK_S)

    def _run(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def run(server: Server, on_start: Callable[[Server], None], ended: asyncio.Event | None = None) -> None:
    """Serve until SIGTERM or SIGINT, or until `ended` is set; a second signal ends the drain."""
    ended = ended or asyncio.Event()
    loop = asyncio.get_running_loop()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ended.set)
    await server.start()
    on_start(server)
    await ended.wait()
    await server.stop()


def front_end_count(said: int | str) -> int:
    """The number of front ends; by default none where cores are few, because the workers need them."""
    if said == "auto":
        return _FRONT_ENDS if this_machine().cores >= _LEAST_CORES else 0
    if type(said) is not int or not 0 <= said <= 64:
        raise UsageError(f'front_ends is "auto" or a number of processes from 0 to 64, not {said!r}')
    return said


def parse_address(text: str) -> tuple[str, int]:
    """`127.0.0.1:8000`, `[::1]:8000`, or `:8000` for all interfaces."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or "/" in host:
        raise UsageError(f"{text!r} is not an address to listen on", next=("write it as HOST:PORT, as in 127.0.0.1:8000",))
    return host.strip("[]") or "0.0.0.0", int(port)


def address_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
