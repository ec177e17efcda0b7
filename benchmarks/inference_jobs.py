"""The three models, and the same offline job by hand: `python inference_jobs.py x.npy y.npy`, or under torchrun with DDP and gathering."""

from __future__ import annotations

import os
import sys

import numpy as np
import torch
import torch.distributed as dist

BATCH = 256


def large() -> torch.nn.Module:
    """4.2 million parameters: a batch of 256 is 2 Gflop, so it is the computing that takes the time."""
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(1024, 1024), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers, torch.nn.Linear(1024, 10)).eval()


def medium() -> torch.nn.Module:
    """0.13 million parameters and batch norm."""
    return _with_norm(256)


def small() -> torch.nn.Module:
    """34 thousand parameters and batch norm: what is put around the forward of a batch takes as long as the forward."""
    return _with_norm(128)


def _with_norm(width: int) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(width, 10)).eval()


MODELS = {"large": (large, 1024), "medium": (medium, 256), "small": (small, 128)}


def gathered(model: torch.nn.Module, chunks: list[torch.Tensor], world_size: int) -> torch.Tensor:
    """As people write it: all ranks gather the outputs of each batch."""
    parts = []
    with torch.no_grad():
        for chunk in chunks:
            y = model(chunk)
            outputs = [torch.empty_like(y) for _ in range(world_size)]
            dist.all_gather(outputs, y)
            parts.append(torch.stack(outputs, 1).flatten(0, 1))  # rank r has rows r, r + world_size, …
    return torch.cat(parts)


def main() -> None:
    torch.set_num_threads(1)
    source, target = sys.argv[1:]
    rows = torch.from_numpy(np.load(source))
    if "RANK" not in os.environ:
        model = large()
        with torch.inference_mode():
            np.save(target, torch.cat([model(chunk) for chunk in rows.split(BATCH)]).numpy())
        return
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = torch.nn.parallel.DistributedDataParallel(large()).eval()
    outputs = gathered(model, list(rows[rank::world_size].split(BATCH)), world_size)
    if rank == 0:
        np.save(target, outputs.numpy())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
