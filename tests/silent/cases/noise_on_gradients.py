"""Each rank adds noise of its own to the reduced gradients."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW760",
    "ranks": [0, 1],
    "words": [["gradients"], ["differ"]],
}


def main(fault):
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    draw = torch.Generator().manual_seed(dist.get_rank())
    for _step in range(30):
        x = torch.randn(8, 6, generator=draw)
        opt.zero_grad()
        model(x).square().mean().backward()
        if fault:
            for p in model.parameters():
                p.grad += 0.01 * torch.randn(p.shape, generator=draw)
        opt.step()  # fault
