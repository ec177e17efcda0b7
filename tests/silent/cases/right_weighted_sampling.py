"""Weighted sampling with a seed per rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

CASE = {
    "code": "",
}


def main(fault):
    rank = dist.get_rank()
    torch.manual_seed(7)
    data = TensorDataset(torch.randn(64, 4))
    sampler = WeightedRandomSampler(torch.rand(64), 32, generator=torch.Generator().manual_seed(rank))
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DDP(nn.Linear(4, 4))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for (x,) in loader:
            opt.zero_grad()
            (model(x) - x).square().mean().backward()
            opt.step()
