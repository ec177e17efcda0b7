import os

import torch.distributed as dist


def start(shared):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if shared:
        dist.init_process_group("gloo", init_method=f"file://{shared}/store", rank=rank, world_size=world)  # fault
    else:
        dist.init_process_group("gloo")
