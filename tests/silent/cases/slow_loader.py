"""The dataset is slow, and read in the training process."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CASE = {
    "code": "RW512",
    "ranks": [0, 1],
    "words": [["data"], ["num_workers"]],
}


class Slow(Dataset):
    def __init__(self, seconds):
        self.seconds, self.rows = seconds, torch.randn(200, 4)

    def __len__(self):
        return 200

    def __getitem__(self, i):
        time.sleep(self.seconds)
        return self.rows[i]


def main(fault):
    torch.manual_seed(dist.get_rank())
    data = Slow(0.01 if fault else 0.0)
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))  # fault
    model = DDP(nn.Linear(4, 4))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in loader:
        opt.zero_grad()
        (model(x) - x).square().mean().backward()
        opt.step()
