"""A slow collective of the script's own at every step."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW513",
    "ranks": [0, 1],
    "words": [["collectives"]],
}


def main(fault):
    torch.manual_seed(dist.get_rank())
    model = DDP(nn.Linear(4, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(25):
        opt.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        opt.step()
        if fault:
            for _ in range(4):
                dist.all_reduce(torch.ones(3_000_000))  # fault
