import os

import torch
import torch.distributed as dist


def start():
    store = f"file://{os.getcwd()}/store-{os.environ['TORCHELASTIC_RESTART_COUNT']}"
    dist.init_process_group("gloo", init_method=store, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))


def read_shard(rank):
    if rank == 1:
        raise RuntimeError("shard is corrupt")  # fault
    return torch.ones(4)


if __name__ == "__main__":
    start()
    ready = torch.ones(1)
    dist.all_reduce(ready)
    data = read_shard(dist.get_rank())
    dist.all_reduce(data)
    dist.destroy_process_group()
