"""Gradients are thrown away by hand inside the accumulation window: no zero_grad tells of it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW761",
    "ranks": [0, 1],
    "words": [["accumulation"], ["throws gradients away"]],
}


def main(fault):
    torch.manual_seed(0)
    model = DDP(nn.Linear(6, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    draw = torch.Generator().manual_seed(dist.get_rank())
    for i in range(40):
        if fault or i % 2 == 0:
            for p in model.parameters():
                p.grad = None
        (model(torch.randn(8, 6, generator=draw)).square().mean() / 2).backward()
        if i % 2:
            opt.step()
