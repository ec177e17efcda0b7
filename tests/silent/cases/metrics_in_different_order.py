"""A dict of metrics is filled in the order of the local data."""

import torch
import torch.distributed as dist

CASE = {
    "code": "RW783",
    "ranks": [0, 1],
    "words": [["order"], ["all_reduce"]],
}


def reduced(value):
    dist.all_reduce(value)  # fault
    return value / dist.get_world_size()


def main(fault):
    names = ["acc", "f1", "auc"] if dist.get_rank() == 0 else ["auc", "acc", "f1"]
    for _ in range(3):
        metrics = {name: torch.rand(()) for name in (names if fault else sorted(names))}
        metrics = {name: reduced(value) for name, value in metrics.items()}
    print(metrics)
