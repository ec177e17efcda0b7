import torch
import torch.distributed as dist


def read_shard(rank):
    if rank == 1:
        raise RuntimeError("shard is corrupt")  # fault
    return torch.ones(4)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    ready = torch.ones(1)
    dist.all_reduce(ready)
    data = read_shard(dist.get_rank())
    dist.all_reduce(data)
    dist.destroy_process_group()
