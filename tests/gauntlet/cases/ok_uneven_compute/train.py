import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DDP(nn.Linear(10, 10))
    opt = torch.optim.Adam(model.parameters())
    for step in range(12):
        if step % world == rank:
            end = time.monotonic() + 0.4
            while time.monotonic() < end:
                sum(i * i for i in range(2000))
        opt.zero_grad()
        model(torch.randn(2 + rank, 10)).abs().mean().backward()
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
