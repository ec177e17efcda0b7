"""Training calls model.module, past DDP."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW760",
    "ranks": [0, 1],
    "words": [["not reduced"], ["wrapper"]],
}


def main(fault):
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    draw = torch.Generator().manual_seed(dist.get_rank())
    for _step in range(30):
        x = torch.randn(8, 6, generator=draw)
        net = model.module if fault else model
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()  # fault
        opt.step()
