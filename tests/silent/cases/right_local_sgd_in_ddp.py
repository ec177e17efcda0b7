"""Local SGD with DDP and no_sync, averaged as one vector."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "",
}


def main(fault):
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    draw = torch.Generator().manual_seed(dist.get_rank())
    for step in range(60):
        opt.zero_grad()
        with model.no_sync():
            model(torch.randn(8, 6, generator=draw)).square().mean().backward()
        opt.step()
        if step % 25 == 24:
            vector = nn.utils.parameters_to_vector(model.parameters())
            dist.all_reduce(vector)
            nn.utils.vector_to_parameters(vector / dist.get_world_size(), model.parameters())
