import multiprocessing as mp
import os

import torch
import torch.distributed as dist


def square(i):
    return i * i, os.getpid()


def run(rank, world, address):
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
    with mp.get_context("fork").Pool(2) as pool:
        for _ in range(3):
            values = pool.map(square, range(50))
            t = torch.tensor([float(sum(v for v, _ in values))])
            dist.all_reduce(t)
    assert t.item() == 2 * sum(i * i for i in range(50))
    dist.destroy_process_group()
