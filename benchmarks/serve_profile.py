"""Where `rankwise serve` and its peers spend their time: CPU microseconds and wake-ups per request, process by process.

    python benchmarks/serve_profile.py [--peers fastapi,mosec,torchserve,triton]

Each is asked in turn, as in serve.py. CPU time tells more than requests per second where other programs use the machine, but grows with
them too. The table goes to benchmarks/results/serve_profile.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import median

import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.environments import Unavailable  # noqa: E402
from benchmarks.machine import machine_facts  # noqa: E402
from benchmarks.serve import Server, ask, awake, request, start, stop, versions, wait_until_ready  # noqa: E402

PEERS = ("fastapi", "mosec", "torchserve", "triton")
POINTS = (("tiny", "json"), ("tiny", "binary"), ("conv", "json"), ("conv", "binary"))
CONNECTIONS = (1, 32)
ROUNDS, SECONDS = 3, 1.0
LEAST_US = 1.0  # what costs less per request is left out
Spent = tuple[float, float]  # CPU microseconds, wake-ups


def spent(process: psutil.Process) -> Spent:
    """By all threads that it has now. A thread that waits and is woken switches voluntarily once."""
    ns = switches = 0
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        with contextlib.suppress(OSError):
            ns += int((task / "schedstat").read_text().split()[0])
            lines = (task / "status").read_text().splitlines()
            switches += int(next(line for line in lines if line.startswith("voluntary")).split()[1])
    return ns / 1e3, switches


def roles(server: Server) -> dict[str, list[psutil.Process]]:
    own = psutil.Process(server.process.pid)
    found = {f"{own.name()}, first process": [own]}
    for child in own.children(recursive=True):
        found.setdefault(f"{child.name()}, started by it", []).append(child)
    return {"client": [psutil.Process()], **found}


def per_request(server: Server, data: bytes, connections: int) -> dict[str, Spent]:
    asyncio.run(ask(server.port, data, connections, 0.3))  # does not count
    known = roles(server)
    before = {role: [spent(process) for process in processes] for role, processes in known.items()}
    took, _ = asyncio.run(ask(server.port, data, connections, SECONDS))
    found = {}
    for role, processes in known.items():
        after = [spent(process) for process in processes]
        us, switches = (sum(now[i] - then[i] for now, then in zip(after, before[role])) / len(took) for i in (0, 1))
        found[role] = us, switches
    return found


@contextlib.contextmanager
def started(names: list[str]) -> Iterator[list[Server]]:
    servers: list[Server] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name in names:
                try:
                    servers.append(start(name, Path(folder)))
                except Unavailable as error:
                    print(f"{name}: {error}", flush=True)
                    continue
                with awake(servers[-1]):
                    wait_until_ready(servers[-1], Path(folder))
            yield servers
        finally:
            for server in servers:
                stop(server)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=",".join(PEERS))
    options = parser.parse_args()
    found: dict[tuple[str, str, int], dict[str, list[dict[str, Spent]]]] = {}
    with started(["rankwise", *filter(None, options.peers.split(","))]) as servers:
        for _, (model, kind), connections in product(range(ROUNDS), POINTS, CONNECTIONS):
            for server in servers:
                with awake(server):
                    one = per_request(server, request(server, model, kind), connections)
                found.setdefault((model, kind, connections), {}).setdefault(server.name, []).append(one)
        page = written(servers, found)
    print(page)
    Path(__file__).with_name("results").joinpath("serve_profile.md").write_text(page)


def written(servers: list[Server], found: dict[tuple[str, str, int], dict[str, list[dict[str, Spent]]]]) -> str:
    keys = list(found)
    lines = [f"| server: process | {' | '.join(', '.join(map(str, key)) for key in keys)} |", "|---|" + "---|" * len(keys)]
    for server in servers:
        for role in dict.fromkeys(role for key in keys for one in found[key][server.name] for role in one):
            spent = [[one[role] for one in found[key][server.name] if role in one] for key in keys]
            cells = [tuple(median(values) for values in zip(*each)) for each in spent]
            if max(us for us, _ in cells) >= LEAST_US:
                lines.append(f"| {server.name}: {role} | {' | '.join(f'{us:,.0f} µs, {switches:.1f}' for us, switches in cells)} |")
    head = ["# Where servers spend their time", "", f"`make profile-serve`; {machine_facts()}; {versions(servers)}.", ""]
    notes = [
        "",
        "CPU time and wake-ups per request of each kind of process, medians of three rounds; columns are model, body and connections.",
        "Processes that cost less than a microsecond are left out.",
        "",
    ]
    return "\n".join([*head, *lines, *notes])


if __name__ == "__main__":
    main()
