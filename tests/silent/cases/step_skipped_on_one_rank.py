"""One rank decides by its own loss whether to make the step."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW770",
    "ranks": [1],
    "words": [["skipped"], ["rank 1"], ["weights differ"]],
}


def main(fault):
    torch.manual_seed(0)
    rank = dist.get_rank()
    model = DDP(nn.Linear(6, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    draw = torch.Generator().manual_seed(rank)
    for i in range(30):
        opt.zero_grad()
        model(torch.randn(8, 6, generator=draw)).square().mean().backward()
        if i % 3 < 2 or (fault and rank == 0):
            opt.step()  # fault
