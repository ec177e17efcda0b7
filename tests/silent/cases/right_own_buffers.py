"""Buffers that are each rank's own, and said to be."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "",
}


class Net(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.lin = nn.Linear(6, 2)
        self.register_buffer("seen_here", torch.zeros(4))
        self.rank = rank

    def forward(self, x):
        self.seen_here += x.mean().detach()
        return self.lin(x)


def main(fault):
    torch.manual_seed(0)
    model = DDP(Net(dist.get_rank()), broadcast_buffers=False)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    draw = torch.Generator().manual_seed(dist.get_rank())
    for _step in range(30):
        opt.zero_grad()
        model(torch.randn(8, 6, generator=draw)).square().mean().backward()
        opt.step()
