"""The job that steps.py measures: two ranks that do as many DDP steps of a given size as they are told, and say how long these took."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 256


def main() -> None:
    """Each line of `<rank>.orders` is `batch steps`; each line of `<rank>.results` is the wall and CPU seconds of one step."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(3)]))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    folder, rank = Path(os.environ["BENCH_FOLDER"]), dist.get_rank()
    with (folder / f"{rank}.orders").open() as orders, (folder / f"{rank}.results").open("w", buffering=1) as results:
        print(os.getpid(), file=results)
        for order in orders:
            print(*block(model, optimizer, *map(int, order.split())), file=results)
    dist.destroy_process_group()


def block(model: nn.Module, optimizer: torch.optim.Optimizer, batch: int, steps: int) -> tuple[float, float]:
    x = torch.randn(batch, WIDTH)
    dist.barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return (time.perf_counter() - wall) / steps, (time.process_time() - cpu) / steps


if __name__ == "__main__":
    main()
