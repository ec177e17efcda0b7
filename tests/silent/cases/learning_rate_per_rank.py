"""The learning rate depends on something local."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW775",
    "ranks": [0, 1],
    "words": [["settings"], ["lr="]],
}


def main(fault):
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    draw = torch.Generator().manual_seed(dist.get_rank())
    for step in range(30):
        if step == 0 and fault:
            opt.param_groups[0]["lr"] *= 1 + dist.get_rank()
        x = torch.randn(8, 6, generator=draw)
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()
