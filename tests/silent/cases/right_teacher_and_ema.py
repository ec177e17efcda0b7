"""A frozen teacher, and an average of the weights."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "",
}


def main(fault):
    torch.manual_seed(0)
    teacher = nn.Linear(6, 2).requires_grad_(False)
    student = nn.Linear(6, 2)
    model = DDP(student)
    average = copy.deepcopy(student).requires_grad_(False)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    draw = torch.Generator().manual_seed(dist.get_rank())
    for _step in range(30):
        x = torch.randn(8, 6, generator=draw)
        opt.zero_grad()
        nn.functional.mse_loss(model(x), teacher(x)).backward()
        opt.step()
        with torch.no_grad():
            for a, p in zip(average.parameters(), student.parameters()):
                a.lerp_(p, 0.1)
