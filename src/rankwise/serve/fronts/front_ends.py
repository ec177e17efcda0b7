"""Starts the front-end processes, gives them connections in turn, answers their requests, and replaces processes that end.

The server reads a few connections itself, because one hop less is quicker; the others go to the processes in turn, which spreads them
evenly. Where no process can take a connection, the server reads it too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict, replace
from typing import Any

from rankwise.serve.binary import read_infer
from rankwise.serve.exchange import HttpRequest, HttpResponse
from rankwise.serve.front import Front
from rankwise.serve.fronts.framing import CANCEL, DRAIN, HEARTBEAT, INFER, OUTPUTS, REQUEST, RESPONSE, SETUP, Frames, pack, unpack
from rankwise.serve.http import Limits
from rankwise.serve.infer_request import InferRequest, InferResponse
from rankwise.serve.rest import Rest, written

log = logging.getLogger("rankwise.serve")
_SILENT_S = 60.0  # a process without a heartbeat for so long is stopped or stuck, and is replaced
_LONGEST_PAUSE_S = 30.0
_WRITTEN_HERE = ("BYTES", "BF16")  # outputs that cannot always be written as JSON; the server counts such failures
Keep = Callable[[socket.socket, bool], bool]


class FrontEndHandle(Frames):
    """The server's side of one front-end process."""

    def __init__(self, process: subprocess.Popen[bytes], connections: socket.socket, owner: FrontEnds) -> None:
        super().__init__()
        self.process, self.connections, self._owner = process, connections, owner
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self.is_ready, self.heard = False, time.monotonic()

    def receive(self, kind: int, number: int, head: Any, raw: memoryview) -> None:
        if kind == INFER:
            self._begin(number, self._infer(number, head, raw))
        elif kind == REQUEST:
            self._begin(number, self._request(number, head, raw))
        elif kind == CANCEL:
            if number in self._tasks:
                self._tasks[number].cancel()
        elif kind == HEARTBEAT:
            self.is_ready, self.heard = True, time.monotonic()

    def give(self, client: socket.socket) -> bool:
        """Send it a connection; False where it cannot take one."""
        try:
            socket.send_fds(self.connections, [b"c"], [client.fileno()])
        except OSError:  # the process has ended, or too many connections wait for it
            return False
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self.connections.close()
        for task in self._tasks.values():
            task.cancel()
        self._owner.lost(self)

    def _begin(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks[number] = self._loop.create_task(work)
        task.add_done_callback(lambda _: self._tasks.pop(number))

    async def _request(self, number: int, head: Any, raw: memoryview) -> None:
        method, path, headers, query = head
        self._reply(number, await self._owner.front.respond(HttpRequest(method, path, headers, bytes(raw), query=query)))

    async def _infer(self, number: int, head: Any, raw: memoryview) -> None:
        path, given, started, outputs, ident, parameters, wanted, accepts, traced, layout = head
        found: list[InferResponse] = []

        async def answer() -> HttpResponse:
            model = self._owner.rest.model_at(path)
            if layout is None:
                asked, _ = read_infer(raw, "0", model)
            else:
                asked = InferRequest({name: (kind, array) for name, kind, array in unpack(layout, raw)}, outputs, ident, parameters)
            response = await model.infer(asked)
            if any(kind in _WRITTEN_HERE for _, kind, _ in response.outputs):
                return await written(response, wanted, accepts)
            found.append(response)
            return HttpResponse(model=model.name)

        request = HttpRequest("POST", path, {**traced, "x-request-id": given}, b"")
        response = await self._owner.front.respond(request, answer, started)
        if not found:
            self._reply(number, response)
            return
        tensors, raws = pack(found[0].outputs)
        shown = next((value for name, value in response.headers if name == "X-Request-Id"), "")
        self.send(OUTPUTS, number, (found[0].model_name, found[0].model_version, ident, found[0].parameters, tensors, shown), raws)

    def _reply(self, number: int, response: HttpResponse) -> None:
        self.send(RESPONSE, number, (response.status, response.content_type, response.headers, response.model), response.parts)


class FrontEnds:
    """`keep(connection, must)` has the server read a connection itself and returns whether it does; with `must` it always does."""

    def __init__(self, count: int, front: Front, rest: Rest, limits: Limits, setup: dict[str, Any], keep: Keep) -> None:
        self._count, self.front, self.rest, self._keep = count, front, rest, keep
        own = max(limits.buffered_bytes // count, limits.body_bytes)
        self._setup = {**setup, "limits": asdict(replace(limits, buffered_bytes=own))}
        self._all: list[FrontEndHandle] = []
        self._listening: list[socket.socket] = []
        self._failures, self._is_ending = 0, False
        self._restarts: set[asyncio.Task[None]] = set()

    async def start(self, listening: list[socket.socket]) -> None:
        self._listening = listening
        await asyncio.gather(*[self._start_one() for _ in range(self._count)])
        self._accept_again()

    async def _start_one(self) -> None:
        ours, theirs = socket.socketpair()
        connections, taken = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, taken:
            fds = theirs.fileno(), taken.fileno()
            command = [sys.executable, "-P", "-m", "rankwise.serve.fronts.front_end_process", *map(str, fds)]
            environ = {**os.environ, "PYTHONPATH": os.pathsep.join([path for path in sys.path if path])}  # imports what we import
            process = subprocess.Popen(command, pass_fds=fds, stdin=subprocess.DEVNULL, start_new_session=True, env=environ)
        connections.setblocking(False)
        loop = asyncio.get_running_loop()
        _, front_end = await loop.connect_accepted_socket(lambda: FrontEndHandle(process, connections, self), ours)
        front_end.send(SETUP, 0, self._setup)
        self._all.append(front_end)

    def _accept_again(self) -> None:
        if not self._is_ending:
            for listening in self._listening:
                asyncio.get_running_loop().add_reader(listening.fileno(), self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        try:
            client, _ = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:  # no more files
            log.warning("connections cannot be accepted for a second: %s", error)
            self._stop_accepting()
            asyncio.get_running_loop().call_later(1.0, self._accept_again)
            return
        if self._keep(client, False):
            return
        for front_end in list(self._all):
            self._all.append(self._all.pop(0))  # the next connection goes to the next process
            if front_end.is_ready and front_end.give(client):
                client.close()
                return
        self._keep(client, True)

    def _stop_accepting(self) -> None:
        for listening in self._listening:
            asyncio.get_running_loop().remove_reader(listening.fileno())

    # ---- processes that end

    def look(self, now: float) -> None:
        """End processes without a heartbeat; called from time to time."""
        for front_end in self._all:
            if now - front_end.heard > _SILENT_S:
                log.error("front-end process %d has said nothing for %.0f s and is replaced", front_end.process.pid, _SILENT_S)
                front_end.process.kill()
        self._failures = 0 if self._failures and all(one.is_ready for one in self._all) else self._failures

    def lost(self, front_end: FrontEndHandle) -> None:
        if front_end in self._all:
            self._all.remove(front_end)
        front_end.process.kill()
        if not self._is_ending:
            self._failures += 1
            task = asyncio.get_running_loop().create_task(self._replace(front_end.process))
            self._restarts.add(task)
            task.add_done_callback(self._restarts.discard)

    async def _replace(self, process: subprocess.Popen[bytes]) -> None:
        code, pause_s = await asyncio.to_thread(process.wait), min(_LONGEST_PAUSE_S, 0.1 * 2 ** (self._failures - 1))
        log.error("front-end process %d ended with code %d; another is started in %.1f s", process.pid, code, pause_s)
        await asyncio.sleep(pause_s)
        await self._start_one()

    async def stop(self, drain_s: float) -> None:
        """Give out no more connections; the processes finish what they have, for at most `drain_s`."""
        self._is_ending = True
        self._stop_accepting()
        for task in list(self._restarts):
            task.cancel()
        for listening in self._listening:
            listening.close()
        ending = list(self._all)
        for front_end in ending:
            front_end.send(DRAIN, 0, drain_s)
        await asyncio.gather(*[asyncio.to_thread(_end, front_end.process, drain_s + 5.0) for front_end in ending])
        for front_end in ending:
            front_end.close()


def _end(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout_s)
    process.kill()
    process.wait()
