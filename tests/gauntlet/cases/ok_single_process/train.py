import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{os.environ['GAUNTLET_PORT']}", rank=0, world_size=1)
model = DDP(nn.Linear(2, 2))
for _ in range(10):
    model(torch.randn(3, 2)).sum().backward()
dist.barrier()
dist.destroy_process_group()
