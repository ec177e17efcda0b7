"""A layer is added to the wrapped model."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW771",
    "ranks": [0, 1],
    "words": [["ddp does not know"], ["extra"]],
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.extra = nn.Linear(6, 2), None

    def forward(self, x):
        return self.body(x) if self.extra is None else self.extra(self.body(x))


def main(fault):
    torch.manual_seed(0)
    net = Net()
    if not fault:
        net.extra = nn.Linear(2, 2)
    model = DDP(net)
    if fault:
        net.extra = nn.Linear(2, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(dist.get_rank())
    for _step in range(30):
        x = torch.randn(8, 6, generator=draw)
        opt.zero_grad()
        nn.functional.cross_entropy(model(x), x[:, :2].argmax(1)).backward()
        opt.step()
