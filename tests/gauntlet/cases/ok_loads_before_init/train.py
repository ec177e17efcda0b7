import os
import time

import torch
import torch.distributed as dist


def prepare(seconds):
    table, end, i = {}, time.monotonic() + seconds, 0
    while time.monotonic() < end:
        table[i % 1000] = hash(str(i))
        i += 1
    return table


table = prepare(6.0 if os.environ["RANK"] == "1" else 0.1)
dist.init_process_group("gloo")
n = torch.tensor([len(table)])
dist.all_reduce(n)
dist.destroy_process_group()
