import os

import torch.distributed as dist
from torch.multiprocessing import spawn


def talk(rank, world):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    everyone = [None] * world
    dist.all_gather_object(everyone, {"rank": rank, "notes": ["x" * 100] * (rank * 500)})
    assert [e["rank"] for e in everyone] == list(range(world))
    inbox = [None]
    dist.scatter_object_list(inbox, [f"to {r}" for r in range(world)] if rank == 0 else None, src=0)
    assert inbox == [f"to {rank}"]
    replies = [None] * world if rank == 1 else None
    dist.gather_object(len(inbox[0]), replies, dst=1)
    box = [sum(replies) if rank == 1 else None]
    dist.broadcast_object_list(box, src=1)
    print(rank, box, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", os.environ["GAUNTLET_PORT"]
    spawn(talk, args=(3,), nprocs=3)
