"""optimizer.zero_grad() between the backward and the step."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW761",
    "ranks": [0, 1],
    "words": [["zero_grad"], ["step"]],
}


def main(fault):
    torch.manual_seed(0)
    model = DDP(nn.Linear(6, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    draw = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(20):
        loss = model(torch.randn(8, 6, generator=draw)).square().mean()
        if not fault:
            opt.zero_grad()
        loss.backward()
        if fault:
            opt.zero_grad()  # fault
        opt.step()
