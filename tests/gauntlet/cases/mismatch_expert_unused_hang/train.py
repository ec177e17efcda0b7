import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))

    def forward(self, x, choice):
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = choice == i
            if rows.any():
                out[rows] = expert(x[rows])  # fault
        return out


def routes(rank, step):
    return torch.zeros(6, dtype=torch.long) if rank == 1 and step == 5 else torch.arange(6) % 2


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(Router(), bucket_cap_mb=0.0001)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        opt.zero_grad()
        model(torch.randn(6, 16), routes(rank, step)).square().sum().backward()  # now
        opt.step()
    dist.barrier()  # now
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
