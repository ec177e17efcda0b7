"""Rank 0 prints the accuracy of its own shard."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

CASE = {
    "code": "RW780",
    "ranks": [0],
    "words": [["metric"], ["rank 0"]],
}


def main(fault):
    torch.manual_seed(0)
    rank, world = dist.get_rank(), dist.get_world_size()
    data = TensorDataset(torch.randn(60, 4), torch.randint(2, (60,)))
    part = Subset(data, range(rank, 60, world))
    model = nn.Linear(4, 2)
    hits = seen = 0
    with torch.no_grad():
        for x, y in DataLoader(part, batch_size=10):
            hits += (model(x).argmax(1) == y).sum().item()
            seen += len(y)
    both = torch.tensor([hits, seen])
    if not fault:
        dist.all_reduce(both)
    if rank == 0:
        print(f"val accuracy {both[0] / both[1]:.3f}", flush=True)
