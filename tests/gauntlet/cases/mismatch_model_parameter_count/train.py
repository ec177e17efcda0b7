import json
import os

import torch
import torch.distributed as dist
from torch import nn

CONFIGS = ['{"width": 8, "gate": true}', '{"width": 8}']


class Block(nn.Module):
    def __init__(self, width, gate=False):
        super().__init__()
        self.up = nn.Linear(width, width)
        self.gate = nn.Linear(width, width) if gate else None  # fault

    def forward(self, x):
        return self.up(x) * (torch.sigmoid(self.gate(x)) if self.gate else 1)


def main():
    dist.init_process_group("gloo")
    config = json.loads(CONFIGS[int(os.environ["LOCAL_RANK"])])
    model = nn.parallel.DistributedDataParallel(Block(**config))  # now
    model(torch.randn(2, 8)).mean().backward()
    dist.destroy_process_group()


main()
