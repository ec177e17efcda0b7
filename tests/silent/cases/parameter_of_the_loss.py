"""A learnt temperature of the loss, in the optimizer and outside of the wrapper."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW771",
    "ranks": [0, 1],
    "words": [["not reduced"], ["differ"]],
}


class WithTemperature(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.lin = nn.Linear(6, 1)
        self.temperature = temperature

    def forward(self, x):
        return self.lin(x) if self.temperature is None else self.lin(x) * self.temperature.exp()


def main(fault):
    torch.manual_seed(0)
    temperature = nn.Parameter(torch.zeros(1))
    model = DDP(WithTemperature(None if fault else temperature))
    opt = torch.optim.SGD([*model.parameters(), *([temperature] if fault else [])], lr=0.05)
    draw = torch.Generator().manual_seed(dist.get_rank())
    for _step in range(30):
        opt.zero_grad()
        out = model(torch.randn(8, 6, generator=draw))
        ((out * temperature.exp() if fault else out) - 1).square().mean().backward()
        opt.step()
