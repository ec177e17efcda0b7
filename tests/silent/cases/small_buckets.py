"""Buckets of a few kilobytes: an all-reduce for nearly every layer."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW514",
    "ranks": [0, 1],
    "words": [["bucket_cap_mb"], ["buckets"]],
}


def main(fault):
    torch.manual_seed(0)
    inner = nn.Sequential(*[nn.Linear(128, 128) for _ in range(24)])
    model = DDP(inner, bucket_cap_mb=0.01) if fault else DDP(inner)  # fault
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    draw = torch.Generator().manual_seed(dist.get_rank())
    for _step in range(20):
        opt.zero_grad()
        model(torch.randn(8, 128, generator=draw)).square().mean().backward()
        opt.step()
