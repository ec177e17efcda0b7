import ctypes
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


class Engine:
    def __init__(self):
        self.libc = ctypes.CDLL(None)

    def verify(self, ok):
        if not ok:
            self.libc.abort()  # fault


def run(rank, world):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    engine = Engine()
    for step in range(6):
        x = torch.ones(2)
        dist.all_reduce(x)
        engine.verify(ok=not (rank == 0 and step == 4))
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=os.environ["GAUNTLET_PORT"])
    mp.spawn(run, args=(2,), nprocs=2)
