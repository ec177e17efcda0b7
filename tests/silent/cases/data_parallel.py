"""nn.DataParallel."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW785",
    "ranks": [0, 1],
    "words": [["dataparallel"], ["ddp"]],
}


def main(fault):
    torch.manual_seed(dist.get_rank())
    model = nn.DataParallel(nn.Linear(4, 1)) if fault else DDP(nn.Linear(4, 1))  # fault
    for _ in range(4):
        model(torch.randn(8, 4)).sum().backward()
