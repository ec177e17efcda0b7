import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP


def save_state(model, opt, path):
    opt.consolidate_state_dict(to=0)  # fault
    torch.save({"model": model.module.state_dict(), "opt": opt.state_dict()}, path)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)))
    opt = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-3)
    for epoch in range(2):
        for _ in range(3):
            opt.zero_grad()
            model(torch.randn(4, 8)).mean().backward()
            opt.step()
        if rank == 0:
            save_state(model, opt, "last.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
