"""One rank's loss becomes nan."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW766",
    "ranks": [1],
    "words": [["loss"], ["rank 1"], ["nan", "inf"]],
}


def main(fault):
    torch.manual_seed(0)
    rank = dist.get_rank()
    model = DDP(nn.Linear(6, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    draw = torch.Generator().manual_seed(rank)
    for step in range(20):
        x = torch.randn(8, 6, generator=draw)
        if rank == 1 and step == 7:
            x[3, 2] = float("inf")
        bad = torch.tensor(float(not x.isfinite().all()))
        dist.all_reduce(bad)
        if bad and not fault:
            continue
        opt.zero_grad()
        loss = (model(x) - x[:, :1]).square().mean()
        loss.backward()  # fault
        opt.step()
