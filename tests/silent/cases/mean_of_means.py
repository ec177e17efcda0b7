"""Means over uneven shards are averaged."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

CASE = {
    "code": "RW781",
    "ranks": [0, 1],
    "words": [["mean of means"]],
}


def main(fault):
    torch.manual_seed(0)
    rank = dist.get_rank()
    data = TensorDataset(torch.randn(60, 4), torch.randint(2, (60,)))
    part = Subset(data, range(45) if rank == 0 else range(45, 60))
    model = nn.Linear(4, 2)
    hits = seen = 0
    with torch.no_grad():
        for x, y in DataLoader(part, batch_size=15):
            hits += (model(x).argmax(1) == y).sum().item()
            seen += len(y)
    if fault:
        accuracy = torch.tensor(hits / seen)
        dist.all_reduce(accuracy)  # fault
        accuracy /= dist.get_world_size()
    else:
        total, count = torch.tensor(float(hits)), torch.tensor(float(seen))
        dist.all_reduce(total)
        dist.all_reduce(count)
        accuracy = total / count
    if rank == 0:
        print(f"val accuracy {accuracy:.3f}", flush=True)
