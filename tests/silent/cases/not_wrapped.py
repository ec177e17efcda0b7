"""The data is shared out, but the model was never wrapped."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CASE = {
    "code": "RW714",
    "ranks": [0, 1],
    "words": [["not wrapped"], ["not reduced"]],
}


def main(fault):
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(96, 6))
    sampler = DistributedSampler(data)
    net = nn.Linear(6, 1)
    model = net if fault else DDP(net)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for (x,) in DataLoader(data, batch_size=8, sampler=sampler):
            opt.zero_grad()
            model(x).square().mean().backward()
            opt.step()  # fault
