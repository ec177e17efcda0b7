import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
model = DDP(nn.Linear(5, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
with Join([model]):
    for _ in range(10 + 15 * dist.get_rank()):
        opt.zero_grad()
        model(torch.randn(4, 5)).mean().backward()
        opt.step()
dist.barrier()
dist.destroy_process_group()
