import os

import torch
import torch.distributed as dist


def make_groups(plan):
    return {name: dist.new_group(ranks) for name, ranks in plan.items()}  # fault


def plan(rank):
    groups = {"expert": [0, 2], "data": [0, 1, 2]}
    return dict(reversed(groups.items())) if rank == 2 else groups


def main():
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    groups = make_groups(plan(rank))
    t = torch.full((3,), float(rank))
    if rank != 1:
        dist.all_reduce(t, group=groups["expert"])
    dist.all_reduce(t, group=groups["data"])
    print(rank, t, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
