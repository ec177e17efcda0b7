import os

import torch.distributed as dist
import torch.multiprocessing as mp
from assets import prepare


def run(rank, world):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    prepare(rank, "tokenizer.json")
    print(rank, "ready", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["GAUNTLET_PORT"])
    mp.spawn(run, args=(2,), nprocs=2)
