"""One rank throws its momenta away and the others keep theirs."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW776",
    "ranks": [0, 1],
    "words": [["state"], ["differs"]],
}


def main(fault):
    torch.manual_seed(0)
    rank = dist.get_rank()
    model = DDP(nn.Linear(6, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    draw = torch.Generator().manual_seed(rank)
    for step in range(30):
        if step == 5 and (rank == 1 or not fault):
            for state in opt.state.values():
                state["momentum_buffer"].mul_(0.5)
        opt.zero_grad()
        model(torch.randn(8, 6, generator=draw)).square().mean().backward()
        opt.step()  # fault
