import multiprocessing as mp
import os
import sys

import torch
import torch.distributed as dist


def run(rank, world):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    score = torch.tensor([0.2 + 0.1 * rank])
    dist.all_reduce(score, op=dist.ReduceOp.MIN)
    dist.barrier()
    dist.destroy_process_group()
    if score.item() < 0.5:
        sys.exit(3)  # fault


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["GAUNTLET_PORT"])
    ctx = mp.get_context("spawn")
    procs = [ctx.Process(target=run, args=(rank, 2)) for rank in range(2)]
    for p in procs:
        p.start()
    for p in procs:
        p.join()
    sys.exit(max(p.exitcode for p in procs))
