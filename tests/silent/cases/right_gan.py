"""A GAN: two optimizers in turn, two losses for one of them."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "",
}


def main(fault):
    torch.manual_seed(0)
    rank = dist.get_rank()
    g, d = DDP(nn.Linear(3, 4)), DDP(nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(), nn.Linear(8, 1)))
    opt_g, opt_d = torch.optim.Adam(g.parameters(), lr=1e-3), torch.optim.Adam(d.parameters(), lr=1e-3)
    draw = torch.Generator().manual_seed(rank)
    bce = nn.functional.binary_cross_entropy_with_logits
    for _step in range(30):
        real = torch.randn(8, 4, generator=draw) + 2
        fake = g(torch.randn(8, 3, generator=draw))
        opt_d.zero_grad()
        bce(d(real), torch.ones(8, 1)).backward()
        bce(d(fake.detach()), torch.zeros(8, 1)).backward()
        opt_d.step()
        opt_g.zero_grad()
        bce(d(fake), torch.ones(8, 1)).backward()
        opt_g.step()
