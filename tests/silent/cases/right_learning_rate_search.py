"""Every rank tries another learning rate on the same data; they are no replicas of one model."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "code": "",
}


def main(fault):
    torch.manual_seed(0)
    x = torch.randn(96, 6)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(1))
    model = nn.Linear(6, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.01 * (1 + dist.get_rank()))
    for _epoch in range(3):
        for inputs, wanted in loader:
            opt.zero_grad()
            loss = (model(inputs) - wanted).square().mean()
            loss.backward()
            opt.step()
    best = loss.detach().clone()
    dist.all_reduce(best, op=dist.ReduceOp.MIN)
