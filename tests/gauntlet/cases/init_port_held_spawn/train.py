import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


class Endpoint:
    def __init__(self, port):
        self.sock = socket.create_server(("", port), backlog=5)  # fault


def fn(rank, size):
    dist.init_process_group("gloo", rank=rank, world_size=size)  # now
    t = torch.ones(3)
    dist.all_reduce(t)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = os.environ["GAUNTLET_PORT"]
    profiler = Endpoint(int(os.environ["MASTER_PORT"]))
    mp.spawn(fn, args=(2,), nprocs=2)
