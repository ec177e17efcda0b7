import os

import torch
import torch.distributed as dist
from torch.multiprocessing import spawn

PAIRS = [(0, 1), (1, 2), (0, 2)]


def exchange(rank, groups, value):
    for neighbour in ((rank + 1) % 3, (rank - 1) % 3):
        pair = tuple(sorted((rank, neighbour)))
        dist.all_reduce(value, group=groups[pair])  # fault
    return value


def main(rank, world):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    groups = {pair: dist.new_group(pair) for pair in PAIRS}
    print(rank, exchange(rank, groups, torch.ones(8)), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["GAUNTLET_PORT"])
    spawn(main, args=(3,), nprocs=3)
