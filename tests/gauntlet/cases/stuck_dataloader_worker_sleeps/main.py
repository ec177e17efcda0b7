import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset


class Remote(Dataset):
    def __init__(self, mirror):
        self.mirror = mirror

    def __len__(self):
        return 12

    def download(self, i):
        if self.mirror == "slow" and i == 5:
            time.sleep(3600)  # fault
        return torch.full((2,), float(i))

    def __getitem__(self, i):
        return self.download(i)


def train(rank, world):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    loader = DataLoader(Remote("fast" if rank == 0 else "slow"), batch_size=2, num_workers=1)
    for x in loader:  # now
        x = x.sum()
        dist.all_reduce(x)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=os.environ["GAUNTLET_PORT"])
    mp.spawn(train, (2,), nprocs=2)
