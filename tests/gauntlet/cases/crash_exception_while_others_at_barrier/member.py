import torch
import torch.distributed as dist


def load(path):
    return torch.load(path, weights_only=True)  # fault


def main(rank, world_size):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    weights = torch.zeros(8)
    if rank == 0:
        weights = load("best.pt")
    dist.barrier()
    dist.broadcast(weights, 0)
    dist.destroy_process_group()
