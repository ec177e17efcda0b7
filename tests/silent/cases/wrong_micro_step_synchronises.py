"""The first micro-step synchronises instead of the last."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW760",
    "ranks": [0, 1],
    "words": [["not reduced"], ["no_sync"]],
}


def main(fault):
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    draw = torch.Generator().manual_seed(dist.get_rank())
    for _step in range(30):
        opt.zero_grad()
        for micro in range(3):
            x = torch.randn(8, 6, generator=draw)
            sync = micro == (0 if fault else 2)
            with contextlib.nullcontext() if sync else model.no_sync():
                (model(x).square().mean() / 3).backward()  # fault
        opt.step()
