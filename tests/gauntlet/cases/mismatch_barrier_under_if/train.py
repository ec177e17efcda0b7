import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def save(model, path):
    torch.save(model.module.state_dict(), path)


def main():
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    model = DDP(nn.Linear(20, 20))
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(12):
        opt.zero_grad()
        model(torch.randn(4, 20)).sum().backward()
        opt.step()
        if step % 5 == 4:
            if rank == 0:
                save(model, "step.pt")
                dist.barrier()  # fault
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
