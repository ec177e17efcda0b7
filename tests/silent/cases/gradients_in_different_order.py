"""Gradients are reduced by hand, largest first."""

import torch
import torch.distributed as dist
from torch import nn

CASE = {
    "code": "RW783",
    "ranks": [0, 1],
    "words": [["order"], ["gradient"]],
}


def main(fault):
    torch.manual_seed(5)
    rank = dist.get_rank()
    model = nn.Sequential(*[nn.Linear(6, 6, bias=False) for _ in range(4)])
    opt = torch.optim.SGD(model.parameters(), lr=0.02)
    draw = torch.Generator().manual_seed(rank)
    for step in range(30):
        x = torch.randn(8, 6, generator=draw) * (1 + 3 * rank * (step % 3))
        opt.zero_grad()
        (model(x) - x).square().mean().backward()
        grads = [p.grad for p in model.parameters()]
        if fault:
            grads.sort(key=lambda grad: -grad.abs().sum().item())  # fault
        for grad in grads:
            dist.all_reduce(grad)
            grad /= dist.get_world_size()
        opt.step()
