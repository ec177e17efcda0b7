"""model.zero_grad() right after each backward's step counter."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW761",
    "ranks": [0, 1],
    "words": [["zero_grad"], ["micro"]],
}


def main(fault):
    torch.manual_seed(0)
    model = DDP(nn.Linear(6, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=0.01)
    draw = torch.Generator().manual_seed(dist.get_rank())
    for i in range(40):
        if fault or i % 4 == 0:
            model.zero_grad()  # fault
        last = i % 4 == 3
        with contextlib.nullcontext() if last else model.no_sync():
            (model(torch.randn(8, 6, generator=draw)).square().mean() / 4).backward()
        if last:
            opt.step()
