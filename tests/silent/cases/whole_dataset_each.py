"""Shuffled without a DistributedSampler, with a seed per rank: each rank sees everything."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CASE = {
    "code": "RW756",
    "ranks": [0, 1],
    "words": [["distributedsampler"], ["each rank"]],
}


def main(fault):
    rank, _world = dist.get_rank(), dist.get_world_size()
    data = TensorDataset(torch.randn(64, 4, generator=torch.Generator().manual_seed(5)))
    torch.manual_seed(rank)
    sampler = None if fault else DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, shuffle=fault, sampler=sampler)  # fault
    model = DDP(nn.Linear(4, 4))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        if sampler:
            sampler.set_epoch(epoch)
        for (x,) in loader:
            opt.zero_grad()
            (model(x) - x).square().mean().backward()
            opt.step()
