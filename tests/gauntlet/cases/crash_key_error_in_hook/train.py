import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from stats import ActivationStats


def build():
    return nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)))


def main():
    dist.init_process_group("gloo")
    net = build()
    stats = ActivationStats(net, known=3 if dist.get_rank() == 1 else 4)
    model = DDP(net)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        stats.enabled = step >= 4
        opt.zero_grad()
        model(torch.randn(2, 6)).mean().backward()
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
