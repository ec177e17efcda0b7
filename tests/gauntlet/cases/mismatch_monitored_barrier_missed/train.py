import datetime
import os

import torch
import torch.distributed as dist


def setup(cache):
    if os.path.exists(cache):
        return  # fault
    with open(cache, "w") as f:
        f.write("ready")
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=3))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    cache = f"cache-{rank}.txt"
    if rank == 2:
        open(cache, "w").close()
    setup(cache)
    t = torch.ones(1)
    dist.all_reduce(t)  # now
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
