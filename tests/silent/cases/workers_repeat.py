"""Each worker of an iterable dataset yields everything."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

CASE = {
    "code": "RW755",
    "ranks": [0, 1],
    "words": [["worker"], ["same"]],
}


class Lines(IterableDataset):
    def __init__(self, split):
        self.split = split

    def __iter__(self):
        rank, world, info = dist.get_rank(), dist.get_world_size(), get_worker_info()
        part, parts = (rank * info.num_workers + info.id, world * info.num_workers) if self.split else (rank, world)
        for i in range(part, 96, parts):
            yield torch.full((4,), float(i)), i % 3


def main(fault):
    loader = DataLoader(Lines(not fault), batch_size=4, num_workers=2)  # fault
    model = DDP(nn.Linear(4, 3))
    opt = torch.optim.SGD(model.parameters(), lr=1e-4)
    for x, y in loader:
        opt.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        opt.step()
