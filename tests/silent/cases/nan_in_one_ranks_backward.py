"""The loss is finite, its gradient on one rank is not: the square root of zero."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW766",
    "ranks": [1],
    "words": [["gradients"], ["rank 1 alone"], ["nan"]],
}


def main(fault):
    torch.manual_seed(0)
    rank = dist.get_rank()
    model = DDP(nn.Linear(6, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    draw = torch.Generator().manual_seed(rank)
    for step in range(20):
        opt.zero_grad()
        out = model(torch.randn(8, 6, generator=draw))
        scale = 0.0 if fault and rank == 1 and step == 7 else 1.0
        (out.square().mean() + 0.1 * (scale * out).square().sum().sqrt()).backward()
        opt.step()
