"""BatchNorm's statistics drift apart: broadcast_buffers is off."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW774",
    "ranks": [0, 1],
    "words": [["batchnorm"], ["differ"]],
}


class Synced(nn.Module):
    """Brings the data of all ranks to one mean first, as SyncBatchNorm would (which needs a GPU)."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x - x.mean())


def main(fault):
    torch.manual_seed(0)
    rank = dist.get_rank()
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    net = net if fault else Synced(net)
    model = DDP(net, broadcast_buffers=not fault)  # fault
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    draw = torch.Generator().manual_seed(rank)
    for _step in range(40):
        x = torch.randn(16, 6, generator=draw) + 3.0 * rank
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()
