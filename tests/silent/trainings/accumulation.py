"""Gradient accumulation with no_sync."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main(fault):
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 1)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    torch.manual_seed(dist.get_rank())
    for _ in range(20):
        opt.zero_grad()
        for micro in range(3):
            with contextlib.nullcontext() if micro == 2 else model.no_sync():
                loss = model(torch.randn(8, 6)).square().mean() / 3
                loss.backward()
            print(loss.item().hex())
        opt.step()
