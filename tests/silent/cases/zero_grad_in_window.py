"""zero_grad in every micro-step."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW761",
    "ranks": [0, 1],
    "words": [["zero_grad"], ["accumulation"]],
}


def main(fault):
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    draw = torch.Generator().manual_seed(dist.get_rank())
    for _step in range(30):
        if not fault:
            opt.zero_grad()
        for micro in range(4):
            x = torch.randn(8, 6, generator=draw)
            if fault:
                opt.zero_grad()  # fault
            with contextlib.nullcontext() if micro == 3 else model.no_sync():
                (model(x).square().mean() / 4).backward()
        opt.step()
