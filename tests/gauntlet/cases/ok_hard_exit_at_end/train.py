import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.ones(3)
for _ in range(10):
    dist.all_reduce(x)
    x /= dist.get_world_size()
dist.barrier()
print("saved", flush=True)
sys.stdout.flush()
os._exit(0)
