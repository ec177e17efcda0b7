"""The server under load for a while: mixed models and clients, workers killed, models reloaded, unloaded and evicted, clients that leave.

    python benchmarks/soak_serve.py [--seconds 600] [--seed 1] [--front-ends auto]

No answer may be wrong, no status but 200 and the documented 429, 499, 503 and 504 may come (503 only of a model that is unloaded at that
moment), p99 has to be back within 2 s of a kill, and memory has to stay flat. Exit code 1 where one of these does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))
MODELS = """
[pool]
workers = 2
memory = "64MB"

[models.small]
build = "benchmarks.serve_models:small"
max_batch = 16
inputs = [{ name = "x", datatype = "FP32", shape = [-1, 16] }]
outputs = [{ name = "y", datatype = "FP32", shape = [-1, 16] }]

[models.slow]
build = "benchmarks.serve_models:slow"
inputs = [{ name = "x", datatype = "FP32", shape = [-1, 16] }]
outputs = [{ name = "y", datatype = "FP32", shape = [-1, 16] }]

[models.large]
build = "benchmarks.serve_models:large"
preload = false
inputs = [{ name = "x", datatype = "FP32", shape = [-1, 16] }]
outputs = [{ name = "y", datatype = "FP32", shape = [-1, 16] }]

[models.other]
build = "benchmarks.serve_models:large"
preload = false
inputs = [{ name = "x", datatype = "FP32", shape = [-1, 16] }]
outputs = [{ name = "y", datatype = "FP32", shape = [-1, 16] }]

[models.kept]
build = "benchmarks.serve_models:small"
deterministic = true
cache = "1MB"
inputs = [{ name = "x", datatype = "FP32", shape = [-1, 16] }]
outputs = [{ name = "y", datatype = "FP32", shape = [-1, 16] }]

[models.split]
split = { small = 0.5, slow = 0.5 }
shadow = "kept"
"""
FACTORS = {"small": 2.0, "slow": 3.0, "large": 5.0, "other": 5.0, "kept": 2.0, "split": 0.0}  # of a split: either of its two
CLIENTS, QUIET_S, BACK_S = 8, 5.0, 2.0


@dataclass
class Seen:
    statuses: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    latencies: list[tuple[float, float]] = field(default_factory=list)  # of the small model: when it was answered, seconds
    kills: list[float] = field(default_factory=list)
    left: int = 0
    memory: list[tuple[float, int]] = field(default_factory=list)
    unloaded: dict[str, float] = field(default_factory=dict)  # until when 503 may come


class Talking:
    """One connection that is kept."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, method: str, path: str, body: bytes = b"", header_length: int | None = None) -> None:
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._address)
        extra = f"Inference-Header-Content-Length: {header_length}\r\n" if header_length is not None else ""
        self._streams[1].write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode() + body)
        await self._streams[1].drain()

    async def receive(self) -> tuple[int, dict[str, str], bytes]:
        assert self._streams is not None
        head = (await self._streams[0].readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])}
        return int(head[0].split()[1]), headers, await self._streams[0].readexactly(int(headers["content-length"]))

    def leave(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
        self._streams = None


def request(rng: random.Random, model: str, numbers: list[float]) -> tuple[bytes, int | None]:
    rows = len(numbers) // 16
    said: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [rows, 16]}
    whole: dict[str, Any] = {"inputs": [said]}
    if rng.random() < 0.1:
        whole["parameters"] = {"timeout": 2_000_000}
    if rng.random() < 0.5:
        return json.dumps({**whole, "inputs": [{**said, "data": numbers}]}).encode(), None
    raw = struct.pack(f"<{len(numbers)}f", *numbers)
    said["parameters"] = {"binary_data_size": len(raw)}
    text = json.dumps(whole).encode()
    return text + raw, len(text)


async def ask(talking: Talking, rng: random.Random, seen: Seen) -> None:
    model = rng.choices(list(FACTORS), [10, 2, 1, 1, 3, 3])[0]
    numbers = [float(rng.randrange(100)) for _ in range(16 * rng.choice([1, 1, 1, 2, 5, 40]))]
    body, length = request(rng, model, numbers)
    started = time.monotonic()
    await talking.send("POST", f"/v2/models/{model}/infer", body, length)
    if rng.random() < 0.03:
        await asyncio.sleep(rng.random() * 0.01)
        talking.leave()
        seen.left += 1
        return
    status, _, answer = await talking.receive()
    now = time.monotonic()
    seen.statuses[f"{status}"] += 1
    if status == 200:
        check(model, numbers, json.loads(answer), seen)
        if model == "small":
            seen.latencies.append((now, now - started))
    elif status == 503 and (seen.unloaded.get(model, 0) < started and not model_may_wait(model, seen, started)):
        seen.wrong.append(f"503 of {model}: {answer[:200]!r}")
    elif status not in (429, 503, 504):
        seen.wrong.append(f"{status} of {model}: {answer[:200]!r}")


def model_may_wait(model: str, seen: Seen, started: float) -> bool:
    """A split is as its parts are."""
    return model == "split" and any(seen.unloaded.get(part, 0) >= started for part in ("small", "slow"))


def check(model: str, numbers: list[float], answer: Any, seen: Seen) -> None:
    found = answer["outputs"][0]["data"]
    factors = [FACTORS[model]] if FACTORS[model] else [FACTORS["small"], FACTORS["slow"]]
    if not any(found == [factor * number for number in numbers] for factor in factors):
        seen.wrong.append(f"{model} answered {found[:4]} to {numbers[:4]}")


async def client(host: str, port: int, seed: int, end: float, seen: Seen) -> None:
    rng, talking = random.Random(seed), Talking(host, port)
    while time.monotonic() < end:
        try:
            await ask(talking, rng, seen)
        except (OSError, asyncio.IncompleteReadError) as error:
            seen.wrong.append(f"a connection was lost: {error!r}")
            talking.leave()
            if len(seen.wrong) > 100:
                return
    talking.leave()


async def troubles(host: str, port: int, seed: int, end: float, seen: Seen, process: psutil.Process) -> None:
    """Now and then a worker is killed, or a model reloaded or unloaded for a moment; quiet before the end, so that all is back."""
    rng, talking = random.Random(seed), Talking(host, port)
    while time.monotonic() < end - QUIET_S:
        await asyncio.sleep(rng.uniform(1, 4))
        kind = rng.randrange(3)
        if kind == 0 and (workers := workers_of(process)):
            rng.choice(workers).send_signal(signal.SIGKILL)
            seen.kills.append(time.monotonic())
        elif kind == 1:
            await control(talking, rng.choice(["small", "slow", "kept"]), "load", seen)
        else:
            model = rng.choice(["large", "other"])
            seen.unloaded[model] = end
            await control(talking, model, "unload", seen)
            await control(talking, model, "load", seen)
            seen.unloaded[model] = time.monotonic() + 0.1
    talking.leave()


async def control(talking: Talking, model: str, what: str, seen: Seen) -> None:
    await talking.send("POST", f"/v2/repository/models/{model}/{what}")
    status, _, answer = await talking.receive()
    seen.statuses[f"{what} {status}"] += 1
    if status != 200:
        seen.wrong.append(f"{what} of {model}: {status} {answer[:200]!r}")


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    """The grandchildren: workers are forked by one process that stands ready."""
    return [grandchild for one in process.children() for grandchild in one.children()]


async def weigh(process: psutil.Process, end: float, seen: Seen) -> None:
    while time.monotonic() < end:
        seen.memory.append((time.monotonic(), process.memory_info().rss))
        await asyncio.sleep(1)


async def soak(address: str, seconds: float, seed: int, process: psutil.Process) -> Seen:
    host, _, port = address.rpartition(":")
    end, seen = time.monotonic() + seconds, Seen()
    clients = [client(host, int(port), seed + i, end, seen) for i in range(CLIENTS)]
    await asyncio.gather(*clients, troubles(host, int(port), seed, end, seen, process), weigh(process, end, seen))
    return seen


def slow_after_kills(seen: Seen) -> list[str]:
    """Kills after which, 2 s later, the second that follows is not as quick as usual: its p99 against three times that of all."""
    values = [seconds for _, seconds in seen.latencies]
    usual = quantiles(values, n=100)[98] if len(values) > 100 else 1.0
    found = []
    for kill in seen.kills:
        after = [seconds for moment, seconds in seen.latencies if kill + BACK_S <= moment < kill + BACK_S + 1]
        other = any(kill < another < kill + BACK_S + 1 for another in seen.kills)
        if len(after) > 20 and not other and quantiles(after, n=100)[98] > max(0.5, 3 * usual):
            found.append(
                f"p99 of {quantiles(after, n=100)[98] * 1e3:.0f} ms in the third second after a kill; it is {usual * 1e3:.0f} ms in all"
            )
    return found


def growth(seen: Seen) -> float:
    """Bytes between the middle of the first third and the last third of the time, which is when all is warm."""
    sizes = [size for _, size in seen.memory]
    third = max(1, len(sizes) // 3)
    return sorted(sizes[-third:])[third // 2] - sorted(sizes[third : 2 * third])[third // 2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--front-ends", default="auto", help="of the server")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "MODELS.toml").write_text(MODELS)
        log = open(Path(folder) / "log", "w+")  # noqa: SIM115  (closed below)
        command = [sys.executable, "-m", "rankwise", "serve", f"{folder}/MODELS.toml", "--http", "127.0.0.1:0", "--grpc", ""]
        command += ["--quiet", "--front-ends", options.front_ends]
        with log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process:
            try:
                assert process.stdout is not None
                found = re.search(r"http on (\S+)", process.stdout.readline())
                assert found is not None, Path(folder, "log").read_text()
                wait_until_ready(found[1])
                seen = asyncio.run(soak(found[1], options.seconds, options.seed, psutil.Process(process.pid)))
            finally:
                process.terminate()
                code = process.wait(60)
        return report(seen, code, Path(folder, "log").read_text())


def wait_until_ready(address: str) -> None:
    from tests.serve.http_client import Client

    with Client(address) as client:
        client.wait_until_ready()


def report(seen: Seen, code: int, log: str) -> int:
    faults = [*seen.wrong[:20], *slow_after_kills(seen)]
    if (grown := growth(seen)) > 32 << 20:
        faults.append(f"memory has grown by {grown / 1e6:.0f} MB")
    if "Traceback" in log:
        faults.append("a traceback in the log: " + log[log.index("Traceback") :][:2000])
    if code != 0:
        faults.append(f"it ended with exit code {code}")
    values = [seconds * 1e3 for _, seconds in seen.latencies]
    percentiles = quantiles(values, n=100) if len(values) > 1 else [0.0] * 99
    print(f"answers   {dict(sorted(seen.statuses.items()))}, {seen.left} clients left before theirs")
    print(f"latency   of the small model: p50 {percentiles[49]:.1f} ms, p99 {percentiles[98]:.1f} ms")
    print(f"troubles  {len(seen.kills)} workers killed")
    print(f"memory    of the server {seen.memory[-1][1] / 1e6:.0f} MB, {grown / 1e6:+.1f} MB in the last third of the time")
    for fault in faults:
        print(f"WRONG     {fault}")
    print("wrong" if faults else "nothing wrong")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
