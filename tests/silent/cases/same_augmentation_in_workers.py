"""The same in DataLoader workers, which are seeded from torch's generator."""

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
        return i, self.base[i] + 0.1 * torch.randn(4)


def seed_everything(seed):
    random.seed(seed)
    torch.manual_seed(seed)  # fault


def main(fault):
    seed_everything(0)
    model = DDP(nn.Linear(4, 4))
    if not fault:
        random.seed(dist.get_rank())
        torch.manual_seed(dist.get_rank())
    data = Augmented()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=2)
    opt = torch.optim.SGD(model.parameters(), lr=1e-6)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for _, x in loader:
            opt.zero_grad()
            (model(x) - x).square().mean().backward()
            opt.step()
