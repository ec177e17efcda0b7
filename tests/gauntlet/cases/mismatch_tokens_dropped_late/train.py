import os

import torch
import torch.distributed as dist


def route(rank, step, experts):
    """How many tokens this rank sends to each expert."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(2, 6, (experts,), generator=generator)


def exchange(tokens, counts, room):
    theirs = torch.empty_like(counts)
    dist.all_to_all_single(theirs, counts)
    # tokens are dropped after the counts were exchanged
    kept = counts.clamp(max=room)  # fault
    arrived = tokens.new_empty(int(theirs.sum()), tokens.shape[1])
    dist.all_to_all_single(arrived, tokens[: int(kept.sum())], theirs.tolist(), kept.tolist())  # now
    return arrived


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    room = 3 if rank == 2 else 100  # an expert's capacity, from this node's settings
    for step in range(40):
        counts = route(rank, step, world)
        arrived = exchange(torch.randn(int(counts.sum()), 8), counts, room)
        mean = arrived.sum() / 8
        dist.all_reduce(mean)
    print(f"rank {os.environ['RANK']} done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
