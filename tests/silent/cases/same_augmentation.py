"""All ranks are seeded alike, and the dataset draws random numbers."""

import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CASE = {
    "code": "RW754",
    "ranks": [0, 1],
    "words": [["seed"], ["same"]],
}


class Augmented(Dataset):
    def __init__(self):
        self.base = torch.arange(96.0).repeat(4, 1).T.contiguous()

    def __len__(self):
        return 96

    def __getitem__(self, i):
        return i, self.base[i] * (1 + random.uniform(-0.1, 0.1))


def seed_everything(seed):
    random.seed(seed)  # fault
    torch.manual_seed(seed)


def main(fault):
    seed_everything(0)
    model = DDP(nn.Linear(4, 4))
    if not fault:
        random.seed(dist.get_rank())
        torch.manual_seed(dist.get_rank())
    data = Augmented()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    opt = torch.optim.SGD(model.parameters(), lr=1e-6)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for _, x in loader:
            opt.zero_grad()
            (model(x) - x).square().mean().backward()
            opt.step()
