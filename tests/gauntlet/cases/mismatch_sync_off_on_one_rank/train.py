import contextlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

BUDGET = 24


def lengths(rank):
    return [8, 8, 8] * 6 if rank == 0 else [8, 8, 8] * 3 + [6, 8, 8] + [8, 8, 8] * 2


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = 0
    for length in lengths(dist.get_rank()):
        tokens += length
        is_full = tokens >= BUDGET
        with contextlib.nullcontext() if is_full else model.no_sync():  # fault
            model(torch.ones(length, 4)).sum().backward()
        if is_full:
            optimizer.step()
            optimizer.zero_grad()
            tokens = 0
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
