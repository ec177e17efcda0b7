"""A GAN with two optimizers."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main(fault):
    torch.manual_seed(0)
    g, d = DDP(nn.Linear(3, 4)), DDP(nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(), nn.Dropout(0.1), nn.Linear(8, 1)))
    opt_g, opt_d = torch.optim.Adam(g.parameters(), lr=1e-3), torch.optim.Adam(d.parameters(), lr=1e-3)
    torch.manual_seed(dist.get_rank())
    bce = nn.functional.binary_cross_entropy_with_logits
    for _ in range(20):
        fake = g(torch.randn(8, 3))
        opt_d.zero_grad()
        loss_d = bce(d(torch.randn(8, 4) + 2), torch.ones(8, 1)) + bce(d(fake.detach()), torch.zeros(8, 1))
        loss_d.backward()
        opt_d.step()
        opt_g.zero_grad()
        loss_g = bce(d(fake), torch.ones(8, 1))
        loss_g.backward()
        opt_g.step()
        print(loss_d.item().hex(), loss_g.item().hex())
