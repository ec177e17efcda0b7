import os

os.environ.setdefault("GLOO_SOCKET_IFNAME", "ib7")  # fault

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")  # now
net = DistributedDataParallel(nn.Linear(2, 2))
net(torch.ones(1, 2)).sum().backward()
dist.destroy_process_group()
