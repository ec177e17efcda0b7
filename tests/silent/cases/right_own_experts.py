"""Parameters that are each rank's own, and that DDP was told to leave alone: a mixture of experts."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CASE = {
    "code": "",
}


def main(fault):
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 1))
    torch.manual_seed(dist.get_rank())
    inner[1].reset_parameters()
    DDP._set_params_and_buffers_to_ignore_for_model(inner, ["1.weight", "1.bias"])
    model = DDP(inner)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for _step in range(30):
        opt.zero_grad()
        model(torch.randn(8, 6)).square().mean().backward()
        opt.step()
