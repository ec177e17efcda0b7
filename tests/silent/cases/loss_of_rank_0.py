"""Rank 0 logs its own loss."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW780",
    "ranks": [0],
    "words": [["loss"], ["rank 0"]],
}


def main(fault):
    torch.manual_seed(0)
    rank = dist.get_rank()
    model = DDP(nn.Linear(4, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    draw = torch.Generator().manual_seed(rank)
    for epoch in range(3):
        total = 0.0
        for _ in range(12):
            x = torch.randn(16, 4, generator=draw)
            loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True) * (1 + 3 * rank))
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()  # fault
        mean = torch.tensor(total / 12)
        if not fault:
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
        if rank == 0:
            print(f"epoch {epoch} train loss {mean.item():.4f}", flush=True)
