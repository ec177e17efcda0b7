"""Data made up in the loop, after all ranks were seeded alike."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW750",
    "ranks": [0, 1],
    "words": [["same"], ["identical"]],
}


def main(fault):
    torch.manual_seed(0 if fault else dist.get_rank())
    model = DDP(nn.Linear(6, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        x = torch.randn(8, 6)
        opt.zero_grad()
        loss = (model(x).squeeze(1) - x.sum(1)).square().mean()  # fault
        loss.backward()
        opt.step()
