"""No DistributedSampler, and the same seed on all ranks."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CASE = {
    "code": "RW750",
    "ranks": [0, 1],
    "words": [["sampler"], ["same"]],
}


def main(fault):
    torch.manual_seed(3)
    data = TensorDataset(torch.randn(96, 4), torch.randint(3, (96,)))
    sampler = None if fault else DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, shuffle=fault, sampler=sampler)  # fault
    model = DDP(nn.Linear(4, 3))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        if sampler:
            sampler.set_epoch(epoch)
        for x, y in loader:
            opt.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            opt.step()
