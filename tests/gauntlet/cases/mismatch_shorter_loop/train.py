import torch
import torch.distributed as dist


def slice_for(rank, world, items):
    return [items[i] for i in range(rank, len(items), world)]


def score(queries, world):
    collected = []
    for query in queries:  # fault
        mine = torch.tensor([float(query), query**0.5])
        everyone = [torch.empty(2) for _ in range(world)]
        dist.all_gather(everyone, mine)
        collected.extend(everyone)
    return torch.stack(collected)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    table = score(slice_for(rank, world, list(range(1, 24))), world)
    dist.barrier()  # now
    if rank == 0:
        print(table.mean(0))
    dist.destroy_process_group()


main()
