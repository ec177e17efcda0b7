import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int)
parser.add_argument("--init")
args = parser.parse_args()

dist.init_process_group("gloo", init_method=args.init, rank=args.rank, world_size=2)
net = DistributedDataParallel(nn.Linear(3, 3))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for chunk in range(5 + 3 * args.rank):  # fault
    opt.zero_grad()
    net(torch.randn(6, 3)).square().sum().backward()
    opt.step()
print("finished", args.rank, flush=True)
