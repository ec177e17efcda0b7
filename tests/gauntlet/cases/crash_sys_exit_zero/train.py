import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Budget:
    def __init__(self, tokens):
        self.left = tokens

    def spend(self, n):
        self.left -= n
        if self.left <= 0:
            print("budget used up", flush=True)
            sys.exit(0)  # fault


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    budget = Budget(1000 if rank == 0 else 300)
    model = DDP(nn.Linear(5, 5))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        opt.zero_grad()
        model(torch.randn(8, 5)).sum().backward()
        opt.step()
        budget.spend(40)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
