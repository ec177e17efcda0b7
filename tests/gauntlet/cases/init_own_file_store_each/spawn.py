import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def setup(rank, world_size):
    handle, path = tempfile.mkstemp(prefix="rdzv-", dir=os.getcwd())  # fault
    os.close(handle)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world_size)  # now


def main_worker(rank, world_size):
    setup(rank, world_size)
    t = torch.ones(2) * rank
    dist.all_reduce(t)
    print(rank, t)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(main_worker, args=(2,), nprocs=2)
