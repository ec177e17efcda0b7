"""The same samples on all ranks, hidden behind augmentation that differs."""

import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, SequentialSampler

CASE = {
    "code": "RW750",
    "ranks": [0, 1],
    "words": [["same"]],
}


class Noisy(Dataset):
    def __init__(self):
        self.labels = torch.arange(64) % 5

    def __len__(self):
        return 64

    def __getitem__(self, i):
        return torch.tensor([random.random() for _ in range(4)]) + i, self.labels[i]


def main(fault):
    random.seed(dist.get_rank())
    data = Noisy()
    sampler = SequentialSampler(data) if fault else DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)  # fault
    model = DDP(nn.Linear(4, 5))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        if not fault:
            sampler.set_epoch(epoch)
        for x, y in loader:
            opt.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            opt.step()
