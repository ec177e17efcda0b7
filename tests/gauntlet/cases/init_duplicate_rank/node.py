import torch
import torch.distributed as dist


def work(rank, world_size, address):
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size)  # now
    votes = torch.zeros(world_size)
    votes[rank] = 1
    dist.all_reduce(votes)
    print(f"rank {rank}: {votes.tolist()}", flush=True)
    dist.destroy_process_group()
