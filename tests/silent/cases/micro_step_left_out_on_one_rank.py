"""One rank leaves out the micro-step that reduces, once, and steps all the same; from then on its reductions meet those of other steps."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW760",
    "ranks": [1],
    "words": [["not reduced"], ["rank 1"], ["left out"]],
}


def main(fault):
    torch.manual_seed(0)
    rank = dist.get_rank()
    model = DDP(nn.Linear(6, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    draw = torch.Generator().manual_seed(rank)
    for i in range(30):
        for micro in range(4):
            model.require_backward_grad_sync = micro == 3
            loss = model(torch.randn(8, 6, generator=draw)).square().mean() / 4
            if fault and rank == 1 and i == 12 and micro == 3:
                continue
            loss.backward()  # fault
        opt.step()
        opt.zero_grad()
