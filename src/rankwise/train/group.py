"""What the process group says, with the same questions answered where there is none: one rank, number 0."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    return dist.get_rank() if is_distributed() else 0


def world_size() -> int:
    return dist.get_world_size() if is_distributed() else 1


def gathered(thing: Any) -> list[Any]:
    """Every rank's `thing`, in the order of the ranks."""
    if world_size() == 1:
        return [thing]
    things: list[Any] = [None] * world_size()
    dist.all_gather_object(things, thing)
    return things


def gathered_numbers(numbers: list[int]) -> list[list[int]]:
    """Every rank's numbers, in one collective; all ranks must give the same many."""
    if world_size() == 1:
        return [numbers]
    mine = torch.tensor(numbers, dtype=torch.int64, device=traffic_device())
    everyone = [torch.empty_like(mine) for _ in range(world_size())]
    dist.all_gather(everyone, mine)
    return [theirs.tolist() for theirs in everyone]


def traffic_device() -> torch.device:
    """Where a tensor has to be for the default group to carry it: NCCL knows only GPUs."""
    if is_distributed() and "nccl" in str(dist.get_backend()):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
