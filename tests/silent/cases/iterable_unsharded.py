"""An iterable dataset that does not look at the rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

CASE = {
    "code": "RW750",
    "ranks": [0, 1],
    "words": [["same"], ["iterable"]],
}


class Lines(IterableDataset):
    def __init__(self, split):
        self.split = split

    def __iter__(self):
        rank, world = dist.get_rank(), dist.get_world_size()
        for i in range(80):
            if not self.split or i % world == rank:
                yield torch.full((4,), float(i)), i % 3


def main(fault):
    model = DDP(nn.Linear(4, 3))
    opt = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(2):
        for x, y in DataLoader(Lines(not fault), batch_size=4):  # fault
            opt.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            opt.step()
