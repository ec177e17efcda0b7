import os

import torch
import torch.distributed as dist
from torch.multiprocessing import spawn


def average(rank, nprocs):
    os.environ.setdefault("MASTER_ADDR", "gpu-07.rack2.invalid")  # fault
    os.environ.setdefault("MASTER_PORT", os.environ["GAUNTLET_PORT"])
    dist.init_process_group(backend="gloo", world_size=nprocs, rank=rank)  # now
    x = torch.tensor(float(rank))
    dist.all_reduce(x)
    print("mean", x.item() / nprocs)
    dist.destroy_process_group()


if __name__ == "__main__":
    spawn(average, args=(2,), nprocs=2, join=True)
