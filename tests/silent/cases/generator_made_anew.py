"""The generator that shuffles is made anew, with the same seed, in each epoch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "code": "RW751",
    "ranks": [0, 1],
    "words": [["same order"], ["seed"]],
}


def main(fault):
    rank = dist.get_rank()
    data = TensorDataset(torch.randn(48, 4, generator=torch.Generator().manual_seed(rank)))
    model = DDP(nn.Linear(4, 4))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.Generator().manual_seed(rank)
    for epoch in range(3):
        seed = rank if fault else 100 * epoch + rank
        loader = loaders(data, torch.Generator().manual_seed(seed))
        for (x,) in loader:  # fault
            opt.zero_grad()
            (model(x) - x).square().mean().backward()
            opt.step()


_made = {}


def loaders(data, generator):
    """One loader for all epochs, whose generator is replaced."""
    if "loader" not in _made:
        _made["loader"] = DataLoader(data, batch_size=8, shuffle=True, generator=generator)
    _made["loader"].sampler.generator = generator
    return _made["loader"]
