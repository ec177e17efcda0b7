"""Layers are unfrozen after DDP has wrapped the model."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "RW771",
    "ranks": [0, 1],
    "words": [["not reduced"], ["backbone"]],
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone, self.head = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.backbone(x).tanh())


def main(fault):
    torch.manual_seed(0)
    net = Net()
    net.backbone.requires_grad_(False)
    model = DDP(net)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(dist.get_rank())
    for step in range(40):
        if step == 6:
            net.backbone.requires_grad_(True)  # fault
            model = model if fault else DDP(net)
        x = torch.randn(8, 6, generator=draw)
        opt.zero_grad()
        nn.functional.cross_entropy(model(x), x[:, :2].argmax(1)).backward()
        opt.step()
