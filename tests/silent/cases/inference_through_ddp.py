"""A wrapped model is only ever called."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW784",
    "ranks": [0, 1],
    "words": [["inference"], ["ddp"]],
}


def main(fault):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)).eval()
    model = DDP(net) if fault else net
    draw = torch.Generator().manual_seed(dist.get_rank())
    outputs = []
    with torch.no_grad():
        for _ in range(20):
            outputs.append(model(torch.randn(8, 4, generator=draw)))  # fault
    dist.barrier()
