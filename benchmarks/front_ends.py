"""What front-end processes gain `rankwise serve`: the same server with 0, 2 and 4 of them, asked in turns by four client processes.

    python benchmarks/front_ends.py

For machines with 8 cores or more. The table goes to benchmarks/results/front_ends.md.
"""

from __future__ import annotations

import asyncio
import multiprocessing as mp
import os
import sys
import tempfile
from itertools import product
from pathlib import Path
from statistics import median, quantiles

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.machine import machine_facts  # noqa: E402
from benchmarks.serve import Server, ask, request, start, stop, wait_until_ready  # noqa: E402

COUNTS, CONNECTIONS, POINTS = (0, 2, 4), (1, 8, 32, 128), (("tiny", "json"), ("tiny", "binary"), ("mlp", "json"), ("conv", "binary"))
ROUNDS, SECONDS, CLIENTS = 3, 1.5, 4


def client(port: int, data: bytes, connections: int, found: mp.Queue) -> None:  # type: ignore[type-arg]
    found.put(asyncio.run(ask(port, data, connections, SECONDS)))


def load(server: Server, data: bytes, connections: int) -> tuple[float, float]:
    """Requests per second and the 99th percentile. One Python client could not ask often enough."""
    count, found = min(CLIENTS, connections), mp.Queue()
    clients = [mp.Process(target=client, args=(server.port, data, connections // count, found)) for _ in range(count)]
    for process in clients:
        process.start()
    answers = [found.get(timeout=60) for _ in clients]
    for process in clients:
        process.join()
    return sum(len(took) / seconds for took, seconds in answers), quantiles([one for took, _ in answers for one in took], n=100)[98]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        servers = [start("rankwise", Path(folder), "--front-ends", str(count)) for count in COUNTS]
        try:
            for server in servers:
                wait_until_ready(server, Path(folder))
            for _, (model, kind), connections in product(range(ROUNDS), POINTS, CONNECTIONS):
                for server in servers:
                    point = load(server, request(server, model, kind), connections)
                    server.points.setdefault((model, kind, connections), []).append(point)
        finally:
            for server in servers:
                stop(server)
    write(servers)


def write(servers: list[Server]) -> None:
    lines = [
        f"| model, body, connections | {' | '.join(f'{count} front ends' for count in COUNTS)} | 2 against 0 |",
        "|---|---|---|---|---|",
    ]
    for key in servers[0].points:
        points = [[median(values) for values in zip(*server.points[key])] for server in servers]
        cells = [f"{rate:,.0f}/s, {p99 * 1e3:.1f} ms" for rate, p99 in points]
        lines.append(f"| {', '.join(map(str, key))} | {' | '.join(cells)} | {points[1][0] / points[0][0]:.2f} |")
    head = ["# Front-end processes of `rankwise serve`", "", f"`python benchmarks/front_ends.py`; {machine_facts()}.", ""]
    notes = ["", f"Requests per second and 99th percentile, medians of {ROUNDS} rounds of {SECONDS} s, asked in turns.", ""]
    page = "\n".join([*head, *lines, *notes])
    print(page)
    (Path(os.environ.get("OUT", Path(__file__).with_name("results"))) / "front_ends.md").write_text(page)


if __name__ == "__main__":
    main()
