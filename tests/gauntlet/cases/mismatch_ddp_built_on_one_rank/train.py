import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def build(rank):
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    student = DDP(copy.deepcopy(net))
    teacher = None
    if rank == 0:
        teacher = DDP(net)  # fault
    return student, teacher


def main():
    dist.init_process_group("gloo")
    student, teacher = build(dist.get_rank())
    opt = torch.optim.SGD(student.parameters(), lr=0.1)
    for _ in range(10):
        opt.zero_grad()
        x = torch.randn(4, 8)
        loss = student(x).square().mean()
        if teacher is not None:
            loss = loss + (student(x) - teacher.module(x)).abs().mean()
        loss.backward()
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
