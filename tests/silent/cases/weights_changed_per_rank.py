"""Noise of each rank's own is added to the weights."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW770",
    "ranks": [0, 1],
    "words": [["weights"], ["differ"]],
}


def main(fault):
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    draw = torch.Generator().manual_seed(dist.get_rank())
    for step in range(30):
        x = torch.randn(8, 6, generator=draw)
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()
        if step % 5 == 0:
            noise = draw if fault else torch.Generator().manual_seed(step)
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(1e-4 * torch.randn(p.shape, generator=noise))
