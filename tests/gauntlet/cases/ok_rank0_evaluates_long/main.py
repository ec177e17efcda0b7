import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


@torch.no_grad()
def evaluate(net, seconds):
    net.eval()
    seen, hits, end = 0, 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        hits += (net(torch.randn(256, 16)).argmax(1) == 0).float().sum().item()
        seen += 256
    net.train()
    return hits / seen


def run(rank, world):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    model = DDP(nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for _ in range(10):
            opt.zero_grad()
            model(torch.randn(8, 16)).mean().backward()
            opt.step()
        if rank == 0 and epoch == 0:
            print("accuracy", evaluate(model.module, 6.0), flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["GAUNTLET_PORT"])
    mp.spawn(run, args=(2,), nprocs=2)
