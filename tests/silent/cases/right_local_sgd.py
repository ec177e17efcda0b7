"""Local SGD: weights are averaged every tenth step."""

import torch
import torch.distributed as dist
from torch import nn

CASE = {
    "code": "",
}


def main(fault):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    draw = torch.Generator().manual_seed(dist.get_rank())
    for step in range(60):
        opt.zero_grad()
        net(torch.randn(8, 6, generator=draw)).square().mean().backward()
        opt.step()
        if step % 25 == 24:
            for p in net.parameters():
                dist.all_reduce(p.data)
                p.data /= dist.get_world_size()
