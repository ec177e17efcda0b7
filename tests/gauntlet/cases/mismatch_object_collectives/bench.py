import multiprocessing as mp
import os

import torch.distributed as dist


class Bench:
    def __init__(self, rank, world):
        dist.init_process_group("gloo", rank=rank, world_size=world)
        self.rank, self.world = rank, world

    def measure(self):
        return {"rank": self.rank, "tokens": [self.rank] * 100}

    def report(self):
        if self.rank == 0:
            box = [self.measure()]
            dist.broadcast_object_list(box, src=0)  # fault
        else:
            results = [None] * self.world
            dist.all_gather_object(results, self.measure())  # fault
        dist.barrier()


def entry(rank, world):
    Bench(rank, world).report()
    print(rank, "reported", flush=True)


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["GAUNTLET_PORT"])
    ctx = mp.get_context("spawn")
    ranks = [ctx.Process(target=entry, args=(r, 3)) for r in range(3)]
    for p in ranks:
        p.start()
    for p in ranks:
        p.join()
