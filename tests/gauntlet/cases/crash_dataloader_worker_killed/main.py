import os
import signal

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset


class Scans(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 48

    def __getitem__(self, i):
        if self.rank == 0 and i == 26:
            os.kill(os.getpid(), signal.SIGKILL)  # fault
        return torch.rand(4)


def run(rank, world):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    for x in DataLoader(Scans(rank), batch_size=4, num_workers=1):  # now
        s = x.sum()
        dist.all_reduce(s)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["GAUNTLET_PORT"])
    mp.spawn(run, args=(2,), nprocs=2)
