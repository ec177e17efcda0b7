import multiprocessing as mp
import os
import signal

import torch
import torch.distributed as dist


def embed(args):
    rank, i = args
    if rank == 1 and i == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return [float(i)] * 4


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with mp.get_context("fork").Pool(2) as pool:
        rows = pool.map(embed, [(rank, i) for i in range(12)])  # fault
    total = torch.tensor(rows).sum(0)
    dist.all_reduce(total)
    print(total, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
