"""One rank of a small job that proves collectives right and times them; runs in the torch process."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

_SIZE = 4 << 20  # float32: 16 MiB
_ROUNDS = 3
_SLOW_S = 3.0  # where one round takes this long, one round is enough


def run_collective(command: dict[str, Any]) -> dict[str, Any]:
    """Join, reduce and gather known numbers, compare; then time a large all_reduce. Answers what was wrong and how quick it was."""
    rank, world_size, backend = int(command["rank"]), int(command["world_size"]), str(command["backend"])
    device = torch.device("cuda", int(command.get("device", 0))) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=float(command["limit_s"]))
    store = dist.TCPStore(command["host"], int(command["port"]), world_size, rank == 0, timeout, wait_for_workers=False)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    try:
        wrong = _find_wrong(rank, world_size, device)
        seconds = _time_all_reduce(device)
        dist.barrier()
    finally:
        dist.destroy_process_group()
    moved = 2 * (world_size - 1) / world_size * _SIZE * 4  # what each rank sends and receives in a ring
    return {"wrong": wrong, "bytes_per_s": moved / seconds}


def _find_wrong(rank: int, world_size: int, device: torch.device) -> list[str]:
    wrong = []
    total = world_size * (world_size + 1) // 2
    for dtype in (torch.int64, torch.float32):
        x = torch.arange(1, 1001, device=device).to(dtype) * (rank + 1)
        dist.all_reduce(x)
        if not torch.equal(x, torch.arange(1, 1001, device=device).to(dtype) * total):
            wrong.append(f"all_reduce of {dtype} gave {x[0].item()} for the first element, not {total}")
    parts = [torch.zeros(10, dtype=torch.int64, device=device) for _ in range(world_size)]
    dist.all_gather(parts, torch.full((10,), rank, dtype=torch.int64, device=device))
    strays = [i for i, part in enumerate(parts) if not torch.equal(part, torch.full_like(part, i))]
    if strays:
        wrong.append(f"all_gather brought something else from rank {strays[0]}")
    x = torch.full((1000,), rank, dtype=torch.int64, device=device)
    dist.broadcast(x, world_size - 1)
    if not bool((x == world_size - 1).all()):
        wrong.append("broadcast from the last rank did not arrive")
    return wrong


def _time_all_reduce(device: torch.device) -> float:
    """Seconds per all_reduce of 16 MiB: the best of a few, the first being for warming up."""
    x = torch.ones(_SIZE, device=device)
    best = float("inf")
    for _ in range(_ROUNDS):
        dist.barrier()
        started = time.perf_counter()
        dist.all_reduce(x)
        if device.type == "cuda":
            torch.cuda.synchronize()
        spent = time.perf_counter() - started
        best = min(best, spent)
        # Every rank must take the same decision, or one would wait for the others.
        slowest = torch.tensor([spent], device=device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        if slowest.item() > _SLOW_S:
            break
    return best
