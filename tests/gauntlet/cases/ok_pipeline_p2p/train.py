import time

import torch
import torch.distributed as dist


def stage(rank, world, micro=6):
    pending = []
    for i in range(micro):
        x = torch.full((64,), float(i))
        if rank > 0:
            dist.irecv(x, src=rank - 1, tag=i).wait()
            time.sleep(0.1 * rank)
        if rank < world - 1:
            pending.append(dist.isend(x + 1, dst=rank + 1, tag=i))
    for work in pending:
        work.wait()
    return x


def ring(rank, world):
    out, inn = torch.full((8,), float(rank)), torch.empty(8)
    ops = [dist.P2POp(dist.isend, out, (rank + 1) % world), dist.P2POp(dist.irecv, inn, (rank - 1) % world)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert inn[0].item() == (rank - 1) % world


if __name__ == "__main__":
    dist.init_process_group("gloo")
    last = stage(dist.get_rank(), dist.get_world_size())
    ring(dist.get_rank(), dist.get_world_size())
    dist.barrier()
    print(last[0].item(), flush=True)
    dist.destroy_process_group()
