"""Gradients are averaged by hand, as tutorials do; the models were built from each rank's own random numbers."""

import torch
import torch.distributed as dist
from torch import nn

CASE = {
    "code": "RW770",
    "ranks": [0, 1],
    "words": [["first step"], ["by hand"]],
}


def main(fault):
    torch.manual_seed(dist.get_rank() if fault else 0)
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    draw = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(20):
        opt.zero_grad()
        net(torch.randn(8, 6, generator=draw)).square().mean().backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        opt.step()  # fault
