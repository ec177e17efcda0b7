"""Two backwards before a step: weights are moved between them, as in SAM."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "",
}


def main(fault):
    torch.manual_seed(0)
    model = DDP(nn.Linear(6, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    draw = torch.Generator().manual_seed(dist.get_rank())
    for _step in range(30):
        x = torch.randn(8, 6, generator=draw)
        model(x).square().mean().backward()
        moved = [0.05 * p.grad / (p.grad.norm() + 1e-12) for p in model.parameters()]
        with torch.no_grad():
            for p, e in zip(model.parameters(), moved):
                p.add_(e)
        opt.zero_grad()
        model(x).square().mean().backward()
        with torch.no_grad():
            for p, e in zip(model.parameters(), moved):
                p.sub_(e)
        opt.step()
        opt.zero_grad()
