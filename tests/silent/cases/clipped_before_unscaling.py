"""Clipping before unscale_."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW764",
    "ranks": [0, 1],
    "words": [["clip"], ["unscale"]],
}


def main(fault):
    torch.manual_seed(0)
    model = DDP(nn.Linear(6, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    draw = torch.Generator().manual_seed(dist.get_rank())
    for _step in range(20):
        loss = model(torch.randn(8, 6, generator=draw)).square().mean()
        opt.zero_grad()
        scaler.scale(loss).backward()
        if not fault:
            scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # fault
        scaler.step(opt)
        scaler.update()
