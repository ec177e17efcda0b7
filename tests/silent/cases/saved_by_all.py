"""Every rank saves to one path."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW782",
    "ranks": [0, 1],
    "words": [["same file"], ["last.pt"]],
}


def main(fault):
    torch.manual_seed(0)
    rank = dist.get_rank()
    model = DDP(nn.Linear(4, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    draw = torch.Generator().manual_seed(rank)
    for step in range(12):
        opt.zero_grad()
        model(torch.randn(8, 4, generator=draw)).square().mean().backward()
        opt.step()
        if step % 4 == 3 and (fault or rank == 0):
            torch.save(model.state_dict(), "last.pt")  # fault
