"""The samples of one rank are much longer."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

CASE = {
    "code": "RW752",
    "ranks": [1],
    "words": [["larger"], ["rank 1"]],
}


class Texts(Dataset):
    def __init__(self, rank, long):
        self.tokens = torch.full((64, 30 if long and rank == 1 else 10), rank, dtype=torch.long)

    def __len__(self):
        return 64

    def __getitem__(self, i):
        return self.tokens[i]


def main(fault):
    data = Texts(dist.get_rank(), fault)
    loader = DataLoader(data, batch_size=4)  # fault
    model = DDP(nn.Embedding(4, 8))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in loader:
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()
