import torch
import torch.distributed as dist
from torch import nn


def local_losses(rank):
    losses = [0.9, 0.8, 0.7]
    losses[(rank + 1) % 3] = 0.1
    return losses


def share_best(model, losses):
    best = losses.index(min(losses))
    for p in model.parameters():
        dist.broadcast(p.data, src=best)  # fault


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 4))
    share_best(model, local_losses(rank))
    check = torch.stack([p.sum() for p in model.parameters()])
    dist.all_reduce(check)
    print(check)
    dist.destroy_process_group()


main()
