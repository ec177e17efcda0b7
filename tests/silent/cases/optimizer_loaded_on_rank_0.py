"""The optimizer's state is loaded on rank 0 only."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW773",
    "ranks": [0],
    "words": [["only rank 0"], ["optimizer"]],
}


def main(fault):
    torch.manual_seed(0)
    rank = dist.get_rank()
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    saved = {name: value + 0.1 for name, value in net.state_dict().items()}
    model = DDP(net)
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    other = torch.optim.Adam(net.parameters(), lr=0.01)
    (net(torch.ones(4, 6)).sum() * 5).backward()
    other.step()
    older = other.state_dict()
    net.load_state_dict(saved)
    for p in net.parameters():
        dist.broadcast(p.data, src=0)
    draw = torch.Generator().manual_seed(rank)
    for step in range(40):
        if step == 5 and (rank == 0 or not fault):
            opt.load_state_dict(older)  # fault
        x = torch.randn(8, 6, generator=draw)
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()
