"""A CNN with BatchNorm and dropout, from a DataLoader with augmentation."""

import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Images(Dataset):
    def __init__(self):
        draw = torch.Generator().manual_seed(1)
        self.images, self.labels = torch.randn(96, 1, 8, 8, generator=draw), torch.randint(4, (96,), generator=draw)

    def __len__(self):
        return 96

    def __getitem__(self, i):
        return self.images[i] + 0.1 * torch.randn(1, 8, 8) + random.uniform(-0.1, 0.1), self.labels[i]


def main(fault):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(144, 4))
    model = DDP(net.to(memory_format=torch.channels_last))
    torch.manual_seed(dist.get_rank())
    random.seed(dist.get_rank())
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = Images()
    sampler = DistributedSampler(data)
    for epoch in range(6):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(data, batch_size=8, sampler=sampler):
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            print(loss.item().hex())
