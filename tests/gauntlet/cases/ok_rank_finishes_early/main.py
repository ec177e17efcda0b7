import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def export(result, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        torch.save(result, "model.pt")
        time.sleep(0.1)


def run(rank, world):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    x = torch.ones(10)
    for _ in range(5):
        dist.all_reduce(x)
    dist.destroy_process_group()
    if rank == 0:
        export(x, 6.0)


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["GAUNTLET_PORT"])
    mp.spawn(run, args=(2,), nprocs=2)
