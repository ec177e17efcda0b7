"""One rank has many more batches than the other."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "code": "RW752",
    "ranks": [1],
    "words": [["length"], ["rank 1"]],
}


def main(fault):
    rank = dist.get_rank()
    count = 40 + (120 * rank if fault else 0)
    data = TensorDataset(torch.randn(count, 4, generator=torch.Generator().manual_seed(rank)))
    loader = DataLoader(data, batch_size=8)  # fault
    model = DDP(nn.Linear(4, 4))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with Join([model]):
        for (x,) in loader:
            opt.zero_grad()
            (model(x) - x).square().mean().backward()
            opt.step()
