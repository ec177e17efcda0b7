import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset


class Frames(Dataset):
    def __init__(self, side):
        self.side = side

    def __len__(self):
        return 32

    def __getitem__(self, i):
        return torch.rand(3, self.side, self.side)  # fault


def run(rank, world):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    for x in DataLoader(Frames(600 if rank == 0 else 8), batch_size=4, num_workers=1):  # now
        m = x.mean()
        dist.all_reduce(m)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.set_sharing_strategy("file_system")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["GAUNTLET_PORT"])
    mp.spawn(run, args=(2,), nprocs=2)
