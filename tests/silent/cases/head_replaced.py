"""A layer is replaced after the optimizer was built."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW702",
    "ranks": [0, 1],
    "words": [["optimizer"], ["does not hold"]],
}


def main(fault):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    if not fault:
        net[2] = nn.Linear(8, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)  # fault
    if fault:
        net[2] = nn.Linear(8, 1)
    model = DDP(net)
    draw = torch.Generator().manual_seed(dist.get_rank())
    for _step in range(20):
        opt.zero_grad()
        model(torch.randn(8, 6, generator=draw)).square().mean().backward()
        opt.step()
