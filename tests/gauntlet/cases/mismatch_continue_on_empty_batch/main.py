import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def filtered(rank, steps=10):
    for i in range(steps):
        x = torch.rand(8, 4)
        if rank == 0 and i == 6:
            x = x * 0.1
        yield x[x.mean(1) > 0.2]


def run(rank, world):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    model = DDP(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
    opt = torch.optim.AdamW(model.parameters())
    for batch in filtered(rank):
        if not len(batch):
            continue  # fault
        opt.zero_grad(set_to_none=True)
        model(batch).mean().backward()
        opt.step()
    dist.barrier()  # now
    print(rank, "epoch done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", os.environ["GAUNTLET_PORT"])
    mp.spawn(run, (2,), nprocs=2)
