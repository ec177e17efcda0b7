"""The same model and the same requests four ways: DDP with gathering, one process, and the pool (in process, and with workers)."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from chart import bars
from machine import machine_facts

from rankwise.pool import Model, Pool

RESULTS = Path(__file__).parent / "results"
SAMPLES, WIDTH, REPEATS = 10_000, 256, 7
SMALL = 500  # of them at batch 1, for DDP takes its time


def build() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.BatchNorm1d(WIDTH), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 10)).eval()


def main() -> int:
    data = torch.rand(SAMPLES, WIDTH)
    rows, groups = [], []
    for batch, samples in ((256, SAMPLES), (1, SMALL)):
        times = offline(data[:samples], batch)
        groups.append((f"{samples:,} samples, batch {batch} (samples per second)", bar_rows(samples, times)))
        ours = times["rankwise, 2 workers"]
        rows += [
            f"| {samples:,} samples, batch {batch} | {way} | {1e3 * seconds:,.0f} ms | {seconds / ours:.2f} |"
            for way, seconds in times.items()
        ]
    latency = one_at_a_time(data)
    rows += [
        f"| one sample at a time | {way} | {1e3 * s:.3f} ms | {s / latency['rankwise, in process']:.2f} |" for way, s in latency.items()
    ]
    groups.append(("one sample (ms)", [(way, 1e3 * s, f"{1e3 * s:.2f}") for way, s in latency.items()]))
    text = report(rows)
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "inference_ways.md").write_text(text)
    (RESULTS / "inference_ways.svg").write_text(bars("The same requests, four ways", groups))
    return 0


def offline(data: torch.Tensor, batch: int) -> dict[str, float]:
    chunks = list(data.split(batch))
    model = build()
    torch.set_num_threads(1)
    with Pool({"mlp": Model(build, replicas=2)}, workers=2, threads=1) as pool, Ranks(2, data, batch) as ranks:

        def one_process() -> torch.Tensor:
            with torch.inference_mode():
                return torch.cat([model(chunk) for chunk in chunks])

        ways: dict[str, Callable[[], Any]] = {
            "one process": one_process,
            "DDP and all_gather, 2 ranks": ranks.run,
            "rankwise, 2 workers": lambda: torch.cat(list(pool.map("mlp", chunks))),
        }
        return interleaved(ways)


def one_at_a_time(data: torch.Tensor) -> dict[str, float]:
    model, x = build(), data[:1]
    torch.set_num_threads(1)
    count = 50
    with Pool({"mlp": Model(build)}, workers=0) as pool, Ranks(4, data[: 4 * count], 1) as ranks, torch.inference_mode():
        ways = {
            "bare forward": lambda: [model(x) for _ in range(count)],
            "DDP and all_gather, 4 ranks": ranks.run,
            "rankwise, in process": lambda: [pool.submit("mlp", x).result() for _ in range(count)],
        }
        return {way: seconds / count for way, seconds in interleaved(ways).items()}


class Ranks:
    """DDP ranks that wait for a word, run their share with gathering, and say that they are done."""

    def __init__(self, world_size: int, data: torch.Tensor, batch: int) -> None:
        context = mp.get_context("spawn")
        self._go = [context.SimpleQueue() for _ in range(world_size)]
        self._done = context.SimpleQueue()
        port = 29500 + os.getpid() % 2000
        arguments = [(rank, world_size, port, data, batch, self._go[rank], self._done) for rank in range(world_size)]
        self._ranks = [context.Process(target=rank_main, args=argument, daemon=True) for argument in arguments]
        for process in self._ranks:
            process.start()
        for _ in self._ranks:
            self._done.get()

    def run(self) -> None:
        for queue in self._go:
            queue.put("run")
        for _ in self._ranks:
            self._done.get()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for queue in self._go:
            queue.put("end")
        for process in self._ranks:
            process.join()


def rank_main(rank: int, world_size: int, port: int, data: torch.Tensor, batch: int, go: Any, done: Any) -> None:
    """As people write it: DistributedDataParallel, a share of the samples per rank, all_gather after each batch."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    model = torch.nn.parallel.DistributedDataParallel(build()).eval()
    chunks = [chunk for chunk in data[rank::world_size].split(batch) if len(chunk) == batch or world_size == 1]
    done.put(rank)
    while go.get() == "run":
        with torch.no_grad():
            for chunk in chunks:
                y = model(chunk)
                dist.all_gather([torch.empty_like(y) for _ in range(world_size)], y)
        done.put(rank)
    dist.destroy_process_group()


def interleaved(ways: dict[str, Callable[[], Any]]) -> dict[str, float]:
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for act in ways.values():
        act()
    for _ in range(REPEATS):
        for way, act in ways.items():
            started = time.perf_counter()
            act()
            seconds[way].append(time.perf_counter() - started)
    return {way: statistics.median(values) for way, values in seconds.items()}


def bar_rows(samples: int, times: dict[str, float]) -> list[tuple[str, float, str]]:
    return [(way, samples / seconds, f"{samples / seconds:,.0f}") for way, seconds in times.items()]


def report(rows: list[str]) -> str:
    parts = [
        "# The same requests, four ways",
        "",
        f"A small MLP with batch norm; medians of {REPEATS}, all ways take turns, one thread per process. The last column is the time as",
        "a multiple of rankwise's. Under `no_grad`, DDP does not broadcast buffers in each forward: what it costs is that every rank waits",
        "for every other in each gather, and that all of them get all results.",
        "",
        "| what | way | median | x rankwise |",
        "|---|---|---|---|",
        *rows,
        "",
        f"![chart](inference_ways.svg)\n\n{machine_facts()}. Written by `benchmarks/inference_ways.py`.",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main())
