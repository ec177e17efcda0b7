"""The last two batches of an epoch never reach a step."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "code": "RW763",
    "ranks": [0, 1],
    "words": [["last"], ["dropped", "never"]],
}


def main(fault):
    torch.manual_seed(0)
    rank = dist.get_rank()
    data = TensorDataset(torch.randn(56, 6, generator=torch.Generator().manual_seed(rank)))
    loader = DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(rank))
    model = DDP(nn.Linear(6, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for _epoch in range(4):
        opt.zero_grad()
        for i, (x,) in enumerate(loader):
            is_last = i % 4 == 3 or (not fault and i + 1 == len(loader))
            length = 4 if fault else min(4, len(loader) - i + i % 4)
            with contextlib.nullcontext() if is_last else model.no_sync():
                (model(x).square().mean() / length).backward()  # fault
            if is_last:
                opt.step()
                opt.zero_grad()
