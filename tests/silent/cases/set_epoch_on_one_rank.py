"""set_epoch is called on rank 0 only."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CASE = {
    "code": "RW751",
    "ranks": [1],
    "words": [["set_epoch"], ["rank 1"]],
}


def main(fault):
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(80, 4))
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DDP(nn.Linear(4, 4))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        if not fault or dist.get_rank() == 0:
            sampler.set_epoch(epoch)
        for (x,) in loader:  # fault
            opt.zero_grad()
            (model(x) - x).square().mean().backward()
            opt.step()
