import torch
import torch.distributed as dist

WORKERS = 2


def main(rank, world_size):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    embedding = torch.full((4,), float(rank))
    outputs = [torch.empty(4) for _ in range(WORKERS)] if rank == 0 else None
    dist.gather(embedding, outputs, dst=0)  # fault
    dist.barrier()
    dist.destroy_process_group()
