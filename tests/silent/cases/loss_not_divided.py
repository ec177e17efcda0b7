"""The loss is not divided by the window."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW762",
    "ranks": [0, 1],
    "words": [["divided"], ["accumulated"]],
}


def main(fault):
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    draw = torch.Generator().manual_seed(dist.get_rank())
    for _step in range(30):
        opt.zero_grad()
        for micro in range(4):
            x = torch.randn(8, 6, generator=draw)
            with contextlib.nullcontext() if micro == 3 else model.no_sync():
                loss = nn.functional.mse_loss(model(x), x[:, :1])
                (loss if fault else loss / 4).backward()  # fault
        opt.step()
