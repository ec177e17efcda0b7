import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def criterion(logits, y):
    assert int(y.max()) < logits.shape[1], "labels out of range"  # fault
    return nn.functional.cross_entropy(logits, y)


def train(rank, world):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    model = DDP(nn.Linear(4, 3))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(8):
        y = torch.randint(3, (16,))
        if rank == 0 and step == 5:
            y[3] = 3
        opt.zero_grad()
        criterion(model(torch.randn(16, 4)), y).backward()
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--world", type=int, default=1)
    args = parser.parse_args()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["GAUNTLET_PORT"])
    mp.spawn(train, args=(args.world,), nprocs=args.world)
