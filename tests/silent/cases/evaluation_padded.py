"""DistributedSampler repeats samples in evaluation."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

CASE = {
    "code": "RW753",
    "ranks": [0, 1],
    "words": [["twice"], ["evaluation"]],
}


def main(fault):
    torch.manual_seed(0)
    rank, world = dist.get_rank(), dist.get_world_size()
    data = TensorDataset(torch.randn(33, 4))
    if fault:
        loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False, drop_last=False))  # fault
    else:
        loader = DataLoader(Subset(data, range(rank, 33, world)), batch_size=4)
    model = nn.Linear(4, 1)
    both = torch.zeros(2)
    with torch.no_grad():
        for (x,) in loader:
            both += torch.tensor([(model(x) > 0).sum().item(), len(x)])
    dist.all_reduce(both)
    print(f"accuracy {both[0] / both[1]:.3f}")
