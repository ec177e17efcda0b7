"""A checkpoint is loaded on rank 0 only, after wrapping."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW773",
    "ranks": [0],
    "words": [["only rank 0"], ["checkpoint"]],
}


def main(fault):
    torch.manual_seed(0)
    rank = dist.get_rank()
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    saved = {name: value + 0.1 for name, value in net.state_dict().items()}
    model = DDP(net)
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    draw = torch.Generator().manual_seed(rank)
    for step in range(40):
        if step == 5 and (rank == 0 or not fault):
            model.module.load_state_dict(saved)  # fault
        x = torch.randn(8, 6, generator=draw)
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()
