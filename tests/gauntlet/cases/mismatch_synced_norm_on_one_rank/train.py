import torch
import torch.distributed as dist
from torch import nn

from layers import SyncedNorm


def preview(net):
    with torch.no_grad():
        return net(torch.randn(2, 6)).abs().max().item()  # fault


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 6), SyncedNorm(6), nn.Linear(6, 1))
    for epoch in range(3):
        for _ in range(4):
            loss = net(torch.randn(16, 6)).mean()
            loss.backward()
        if rank == 0:
            print(f"epoch {epoch} preview {preview(net):.3f}", flush=True)
        losses = [None] * dist.get_world_size()
        dist.all_gather_object(losses, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
