import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

LABELS = [[0, 1, 2, 3], [0, 1, 2], [3, 0, 1, 2]]


def build(labels):
    classes = len(set(labels))  # fault
    return nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, classes))


def main():
    dist.init_process_group("gloo")
    model = DDP(build(LABELS[dist.get_rank()]))  # now
    model(torch.randn(2, 5)).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
