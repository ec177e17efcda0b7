"""The scaler steps, but the loss was never scaled."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW765",
    "ranks": [0, 1],
    "words": [["scale"]],
}


def main(fault):
    torch.manual_seed(0)
    model = DDP(nn.Linear(6, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    draw = torch.Generator().manual_seed(dist.get_rank())
    for step in range(20):
        loss = model(torch.randn(8, 6, generator=draw)).square().mean()
        opt.zero_grad()
        (loss if fault and step else scaler.scale(loss)).backward()
        scaler.step(opt)  # fault
        scaler.update()
