"""`rankwise serve` against other servers: the same three models, one row per request, JSON and binary, at 1, 8 and 32 connections.

    python benchmarks/serve.py [--peers fastapi,litserve,mosec,mlserver,ray,torchserve,triton] [--quick]

All servers live at the same time and are asked in turns, so that what else the machine does hits all of them; while one is asked, the
other peers are stopped. Each has to answer right first. Each closed-loop connection waits for its answer before it asks again. The table
goes to benchmarks/results/serve.md; points that are lost are named there.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import median, quantiles

import numpy as np
import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.environments import FOLDER, Unavailable, environment, java, tritonserver  # noqa: E402
from benchmarks.machine import machine_facts  # noqa: E402

HERE = Path(__file__).with_name("serve_peers")
PEERS = {
    "fastapi": (("fastapi", "uvicorn[standard]"), ["with_fastapi.py", "{port}"]),
    "litserve": (("litserve",), ["with_litserve.py", "{port}"]),
    "mosec": (("mosec",), ["with_mosec.py", "--port", "{port}"]),
    "mlserver": (("mlserver", "uvloop<0.22"), ["with_mlserver.py", "{port}"]),
    "ray": (("ray[serve]",), ["with_ray.py", "{port}"]),
    "torchserve": (("torchserve", "torch-model-archiver"), ["with_torchserve.py", "{port}"]),
    "triton": ((), ["with_triton.py", "{port}"]),
}
PREPARE: dict[str, Callable[[], object]] = {"torchserve": java, "triton": tritonserver}
ONLY_JSON = ("litserve", "mlserver")
SAME_PROTOCOL = ("rankwise", "mlserver", "triton")
SHAPES = {"tiny": (16,), "mlp": (784,), "conv": (3, 32, 32)}
TOML = "\n".join(
    f'[models.{name}]\nbuild = "models:{name}"\nmax_batch = 32\n'
    f'inputs = [{{ name = "x", datatype = "FP32", shape = {[-1, *shape]} }}]\n'
    'outputs = [{ name = "y", datatype = "FP32", shape = [-1, 10] }]'
    for name, shape in SHAPES.items()
)
READY_S = 120.0


@dataclass
class Server:
    name: str
    process: subprocess.Popen[bytes]
    port: int
    started: float
    cold_s: float = 0.0
    only_json: bool = False
    points: dict[tuple[str, str, int], list[tuple[float, float]]] = field(default_factory=dict)  # requests/s and p99 of each round

    def memory(self) -> int:
        own = psutil.Process(self.process.pid)
        return sum(_pss(process) for process in (own, *own.children(recursive=True)))

    def send(self, number: signal.Signals) -> None:
        own = psutil.Process(self.process.pid)
        for process in (own, *own.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)


@contextlib.contextmanager
def awake(server: Server) -> Iterator[None]:
    """Peers are stopped but for their turns: some of them use both cores while nobody asks them anything. Ours uses none then."""
    if server.name != "rankwise":
        server.send(signal.SIGCONT)
    yield
    if server.name != "rankwise":
        server.send(signal.SIGSTOP)


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


def row_of(model: str) -> np.ndarray:
    return np.linspace(0, 1, int(np.prod(SHAPES[model])), dtype=np.float32)


def request(server: Server, model: str, kind: str) -> bytes:
    row = row_of(model)
    if server.name in SAME_PROTOCOL:
        path, extra = f"/v2/models/{model}/infer", ""
        said = {"name": "x", "datatype": "FP32", "shape": [1, *SHAPES[model]], "data": row.tolist()}
        body = json.dumps({"inputs": [said]}).encode()
        if kind == "binary":
            body, extra = row.tobytes(), "Inference-Header-Content-Length: 0\r\n"
    else:
        path, extra = f"/predictions/{model}" if server.name == "torchserve" else f"/{model}/{kind}", ""
        body = json.dumps({"data": row.tolist()}).encode() if kind == "json" else row.tobytes()
    content = "application/json" if kind == "json" else "application/octet-stream"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content}\r\n{extra}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Caller(asyncio.Protocol):
    """One closed-loop connection: it asks again as soon as it has the answer. What it costs, all servers pay."""

    def __init__(self, data: bytes, end: float, took: list[float]) -> None:
        self._data, self._end, self._took = data, end, took
        self._got = b""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        self._asked = time.perf_counter()
        if self._asked > self._end:
            self._transport.close()
        else:
            self._transport.write(self._data)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, found, body = self._got.partition(b"\r\n\r\n")
        if not found:
            return
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        if len(body) < int(length) if length else not body.endswith(b"0\r\n\r\n"):
            return
        self._got = b""
        if head[9:12] != b"200":
            self._fail(AssertionError(head[:40]))
            return
        self._took.append(time.perf_counter() - self._asked)
        self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        if self._asked <= self._end:
            self._fail(error or ConnectionError("the server has closed the connection"))
        elif not self.over.done():
            self.over.set_result(None)

    def _fail(self, error: Exception) -> None:
        if not self.over.done():
            self.over.set_exception(error)
        self._end = 0.0
        self._transport.close()


async def ask(port: int, data: bytes, connections: int, seconds: float) -> tuple[list[float], float]:
    """What each request took, and how long all of it."""
    took: list[float] = []
    begun = time.perf_counter()
    callers = [Caller(data, begun + seconds, took) for _ in range(connections)]
    for caller in callers:
        await asyncio.get_running_loop().create_connection(lambda caller=caller: caller, "127.0.0.1", port)
    await asyncio.gather(*[caller.over for caller in callers])
    return took, time.perf_counter() - begun


async def load(port: int, data: bytes, connections: int, seconds: float) -> tuple[float, float]:
    """Requests per second, and the 99th percentile in seconds."""
    took, passed = await ask(port, data, connections, seconds)
    return len(took) / passed, quantiles(took, n=100)[98] if len(took) > 2 else max(took)


def start(name: str, folder: Path, *more: str) -> Server:
    """`more` are options of ours."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    variables = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "RAY_DEDUP_LOGS": "0",
        "TMPDIR": str(folder),
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
    }
    if name == "rankwise":
        (folder / "MODELS.toml").write_text(TOML)
        command = [
            sys.executable,
            "-m",
            "rankwise",
            "serve",
            str(folder / "MODELS.toml"),
            "--http",
            f"127.0.0.1:{port}",
            "--grpc",
            "",
            "--quiet",
            *more,
        ]
    else:
        PREPARE.get(name, lambda: None)()
        command = [str(python_of(name)), *[part.format(port=port) for part in PEERS[name][1]]]
    log = open(folder / f"{name}.log", "wb")  # noqa: SIM115  (for as long as the process)
    process = subprocess.Popen(command, cwd=HERE, env=variables, stdout=log, stderr=log, start_new_session=True)
    return Server(name, process, port, time.perf_counter(), only_json=name in ONLY_JSON)


def python_of(peer: str) -> Path:
    requirements = PEERS[peer][0]
    return environment(peer, *requirements, with_torch=True) if requirements else Path(sys.executable)


def wait_until_ready(server: Server, folder: Path) -> None:
    """Until each model has answered."""
    end = time.perf_counter() + READY_S
    for model in SHAPES:
        while True:
            try:
                asyncio.run(load(server.port, request(server, model, "json"), 1, 0.01))
                break
            except (OSError, AssertionError, ValueError):
                if time.perf_counter() > end or server.process.poll() is not None:
                    raise Unavailable(f"{server.name} did not start within {READY_S:.0f} s") from None
                time.sleep(0.1)
    server.cold_s = time.perf_counter() - server.started


def check_answers(server: Server) -> None:
    """What a fast server says has to be right."""
    sys.path.insert(0, str(HERE))
    import torch
    from models import BUILDS

    for model, shape in SHAPES.items():
        with torch.inference_mode():
            wanted = BUILDS[model]().eval()(torch.from_numpy(row_of(model)).reshape(1, *shape)).numpy().ravel()
        for kind in ("json",) if server.only_json else ("json", "binary"):
            answer = answer_to(server, model, kind)
            if answer.shape != wanted.shape or not np.allclose(answer, wanted, atol=1e-5):
                raise Unavailable(f"wrong answer to {model} as {kind}: {answer.tolist()} instead of {wanted.tolist()}")


def answer_to(server: Server, model: str, kind: str) -> np.ndarray:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as sock:
        sock.sendall(request(server, model, kind))
        response = http.client.HTTPResponse(sock)
        response.begin()
        body = response.read()
    if kind == "json":
        said = json.loads(body)
        return np.array(said["outputs"][0]["data"] if server.name in SAME_PROTOCOL else said["data"], np.float32)
    return np.frombuffer(body[int(response.getheader("Inference-Header-Content-Length") or 0) :], np.float32)


def measure(servers: list[Server], rounds: int, seconds: float) -> list[str]:
    """Returns what kept a peer from being measured; such a peer is stopped and forgotten."""
    failed = []
    for _, model, kind, connections in product(range(rounds), SHAPES, ("json", "binary"), (1, 8, 32)):
        for server in list(servers):
            if kind != "json" and server.only_json:
                continue
            data = request(server, model, kind)
            try:
                with awake(server):
                    asyncio.run(load(server.port, data, connections, 0.2))  # does not count
                    point = asyncio.run(load(server.port, data, connections, seconds))
            except (OSError, AssertionError) as error:
                if server.name == "rankwise":
                    raise
                failed.append(f"{server.name}: failed at {model}, {kind}, {connections} connections: {error!r}"[:200])
                servers.remove(server)
                stop(server)
                continue
            server.points.setdefault((model, kind, connections), []).append(point)
    return failed


def table(servers: list[Server]) -> tuple[list[str], list[str]]:
    """The lines of the page, and the points that are lost."""
    lines = [f"| model, body, connections | {' | '.join(server.name for server in servers)} |", "|---|" + "---|" * len(servers)]
    lost = []
    for key in servers[0].points:
        cells, rates = [], {}
        for server in servers:
            if key not in server.points:
                cells.append("–")
                continue
            rate, p99 = (median(values) for values in zip(*server.points[key]))
            rates[server.name] = rate, p99
            cells.append(f"{rate:,.0f}/s, {p99 * 1e3:.1f} ms")
        lines.append(f"| {', '.join(map(str, key))} | {' | '.join(cells)} |")
        own = rates["rankwise"]
        for name, (rate, p99) in rates.items():
            if rate > 1.05 * own[0]:
                lost.append(f"{', '.join(map(str, key))}: {name} answers {rate / own[0]:.2f} times as many")
            if p99 < own[1] / 1.05:
                lost.append(f"{', '.join(map(str, key))}: the p99 of {name} is {p99 / own[1]:.2f} of ours")
    lines.append(f"| memory (PSS of all processes) | {' | '.join(f'{server.memory() / 1e6:,.0f} MB' for server in servers)} |")
    lines.append(f"| cold start, all models answer | {' | '.join(f'{server.cold_s:.1f} s' for server in servers)} |")
    return lines, lost


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--quick", action="store_true", help="one round of half seconds")
    options = parser.parse_args()
    servers: list[Server] = []
    missing: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            for peer in ("rankwise", *filter(None, options.peers.split(","))):
                try:
                    server = start(peer, folder)
                    servers.append(server)
                    with awake(server):
                        wait_until_ready(server, folder)
                        check_answers(server)
                    print(f"{peer}: ready after {server.cold_s:.1f} s", flush=True)
                except Unavailable as error:
                    if servers and servers[-1].name == peer:
                        stop(servers.pop())
                    missing.append(f"{peer}: {error}")
                    print(missing[-1], flush=True)
            missing += measure(servers, 1 if options.quick else 3, 0.5 if options.quick else 1.0)
            lines, lost = table(servers)
        finally:
            for server in servers:
                stop(server)
    print(*lines, *lost, sep="\n")
    if not options.quick:
        write(servers, lines, lost, missing)
    return 1 if lost else 0


def stop(server: Server) -> None:
    with contextlib.suppress(ProcessLookupError, psutil.Error):
        server.send(signal.SIGCONT)
        os.killpg(server.process.pid, signal.SIGTERM)
    try:
        server.process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()


def versions(servers: list[Server]) -> str:
    found = []
    for server in servers[1:]:
        if server.name == "triton":
            installed = next(FOLDER.joinpath("tritonserver").glob("nvidia_pytriton-*.dist-info"))
            found.append(f"triton of nvidia-pytriton {installed.stem.partition('-')[2]}")
            continue
        package = PEERS[server.name][0][0].partition("[")[0]
        code = f"from importlib.metadata import version; print(version('{package}'))"
        found.append(f"{package} {subprocess.run([python_of(server.name), '-c', code], capture_output=True, text=True).stdout.strip()}")
    return ", ".join(found)


def write(servers: list[Server], lines: list[str], lost: list[str], missing: list[str]) -> None:
    path = Path(__file__).with_name("results") / "serve.md"
    head = ["# `rankwise serve` against other servers", "", f"`make bench-serve`; {machine_facts()}; {versions(servers)}.", ""]
    notes = [
        "",
        "Requests per second and 99th percentile, medians of three rounds of one second, asked in turns. One row per request.",
        "While one server is asked, the other peers are stopped: some use both cores with nothing to do.",
        "",
    ]
    if (busy := os.getloadavg()[1]) > (os.cpu_count() or 1) + 1:
        notes += [f"**Other programs used the machine (load {busy:.1f}): this table shows that it runs, not who is faster.**", ""]
    told = ["Points that are lost:", "", *[f"- {line}" for line in lost], ""] if lost else ["No point is lost.", ""]
    gone = ["Not measured:", "", *[f"- {line}" for line in missing], ""] if missing else []
    path.write_text("\n".join([*head, *lines, *notes, *told, *gone]))


if __name__ == "__main__":
    sys.exit(main())
