import os

os.environ["TORCH_DISTRIBUTED_DEBUG"] = "INFO"
os.environ["TORCH_CPP_LOG_LEVEL"] = "INFO"

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
model = DDP(nn.Linear(3, 3))
for _ in range(5):
    model(torch.randn(2, 3)).sum().backward()
dist.destroy_process_group()
