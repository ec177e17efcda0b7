"""The job that steps.py measures: two ranks that make DDP steps of several sizes, and say what a step of each took."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, ROWS = 256, 16
NUM_FIRST = 1200  # small steps before anything counts, some 6 s: the audit looks at each of the first 200, the watcher often at a young job


class Repeated(nn.Module):
    """The same layers, as often as it takes: a longer step that needs no more memory for its numbers than the processor has at hand."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(3)])

    def forward(self, x: torch.Tensor, repeats: int) -> torch.Tensor:
        for _ in range(repeats):
            x = self.layers(x)
        return x


def main() -> None:
    """Arguments: the file for the answers, then `repeats:steps` for each size, or milliseconds to find the repeats for."""
    answer_file, *sizes = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_flush_denormal(True)  # through many layers gradients fade away, and x86 takes many times as long for numbers that small
    model = DistributedDataParallel(Repeated())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    block(model, optimizer, 1, NUM_FIRST)
    if all(":" in size for size in sizes):
        began, watcher_s = time.perf_counter(), watcher_cpu_s()
        blocks = [block(model, optimizer, *map(int, size.split(":"))) for size in sizes]
        share = (watcher_cpu_s() - watcher_s) / (time.perf_counter() - began)
        answer = {"blocks": blocks, "watcher_share": share, "memory": memory_mib()}
    else:
        few_s, many_s = (min(block(model, optimizer, repeats, 10)[0] for _ in range(5)) for repeats in (2, 22))
        each_s = (many_s - few_s) / 20
        answer = {"repeats": [max(1, round(2 + (float(size) / 1e3 - few_s) / each_s)) for size in sizes]}
    Path(f"{answer_file}.{dist.get_rank()}").write_text(json.dumps(answer))
    dist.destroy_process_group()


def block(model: nn.Module, optimizer: torch.optim.Optimizer, repeats: int, steps: int) -> tuple[float, float]:
    """Wall and CPU seconds of one step."""
    x = torch.randn(ROWS, WIDTH)
    dist.barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        optimizer.zero_grad()
        model(x, repeats).square().mean().backward()
        optimizer.step()
    return (time.perf_counter() - wall) / steps, (time.process_time() - cpu) / steps


def watcher_cpu_s() -> float:
    """CPU time of the process that watches this job, 0 where none does."""
    pid = os.environ.get("RANKWISE_LAUNCHER_PID")
    if pid is None:
        return 0.0
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def memory_mib() -> tuple[float, float]:
    """This rank's share of what several processes map, and all of it."""
    lines = dict(line.split()[:2] for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return int(lines["Pss:"]) / 1024, int(lines["Rss:"]) / 1024


if __name__ == "__main__":
    main()
