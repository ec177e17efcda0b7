import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def read_command(rank):
    path = f"control-{rank}"
    if rank == 1:
        os.mkfifo(path)
    else:
        with open(path, "w") as f:
            f.write("go")
    with open(path) as f:  # fault
        return f.read()


def work(rank, size):
    dist.init_process_group("gloo", rank=rank, world_size=size)
    flag = torch.tensor([len(read_command(rank))])
    dist.all_reduce(flag)
    print(flag)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["GAUNTLET_PORT"])
    mp.spawn(work, args=(2,), nprocs=2)
