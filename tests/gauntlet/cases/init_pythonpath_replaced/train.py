import torch
import torch.distributed as dist
from jitter import jitter  # fault

dist.init_process_group("gloo")
x = jitter(torch.arange(3.0))
dist.all_reduce(x)
dist.destroy_process_group()
