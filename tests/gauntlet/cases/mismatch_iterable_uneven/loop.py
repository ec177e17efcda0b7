import torch
import torch.distributed as dist
from shards import ShardReader
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader


def worker(rank, world, epochs):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    model = DDP(nn.Sequential(nn.Linear(9, 9), nn.SiLU(), nn.Linear(9, 1)))
    opt = torch.optim.Adam(model.parameters())
    loader = DataLoader(ShardReader(rank), batch_size=4)
    for epoch in range(epochs):
        for x in loader:  # fault
            opt.zero_grad()
            model(x).square().mean().backward()
            opt.step()
        dist.barrier()  # now
        if rank == 0:
            print("epoch", epoch, flush=True)
    dist.destroy_process_group()
